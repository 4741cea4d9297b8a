"""All measurements but `distributed` and `kernels`."""

from bench.command import command
from bench.hpatches import measure_hpatches
from bench.inference import measure_inference
from bench.matching import measure_images, measure_matching
from bench.training import measure_data, measure_loss, measure_training

main = command(
    "all",
    *(measure_data, measure_loss, measure_training, measure_inference),
    *(measure_matching, measure_images, measure_hpatches),
)
