"""The encoder as an OpenVINO graph (extra `fast`): the quickest way to describe patches on a CPU.

The graph is written out operation by operation, which takes milliseconds where tracing the module takes more than a second.
Parameters that do not change any more are folded: BatchNorm into the last convolution.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from sdgmnet.encoders import FilterResponseNorm, SDGMNet, ThresholdedLinearUnit
from sdgmnet.resampling import resample_matrix

BATCH = 32  # patches a request: activations stay in a core's cache


def is_available() -> bool:
    return find_spec("openvino") is not None


def build_graph(encoder: SDGMNet, side: int, dtype: type[np.generic]) -> Any:
    """Patches (BATCH, side, side), uint8 or float32 in [0, 1] -> descriptors (BATCH, 128); halves those of twice the size."""
    import openvino
    from openvino import opset13 as op

    patches = op.parameter([BATCH, side, side], dtype, name="patches")
    x = op.divide(op.convert(patches, "f32"), np.float32(255)) if dtype is np.uint8 else patches
    if side == 2 * encoder.patch_size:
        matrix = resample_matrix(torch.zeros(1), torch.full((1,), float(side)), side, side // 2)[0].numpy()
        x = op.matmul(op.matmul(op.constant(matrix), x, False, False), op.constant(matrix), False, True)
    x = op.unsqueeze(x, np.int64(1))
    for block in (encoder.input, encoder.first, *encoder.middle):
        for layer in block:
            x = _layer(op, x, layer)
    weight, bias = _last_convolution(encoder)
    x = op.add(op.convolution(x, op.constant(weight), [1, 1], [0, 0], [0, 0], [1, 1]), op.constant(bias))
    x = op.normalize_l2(op.reshape(x, op.constant(np.array([BATCH, -1])), False), np.array([1]), 1e-24, "max")
    return openvino.Model([x], [patches], "sdgmnet")


def _layer(op: Any, x: Any, layer: torch.nn.Module) -> Any:
    def column(parameter: torch.Tensor) -> Any:
        return op.constant(parameter.detach().numpy().reshape(1, -1, 1, 1))

    if isinstance(layer, torch.nn.Conv2d):
        assert layer.bias is not None
        stride = [layer.stride[0]] * 2
        x = op.convolution(x, op.constant(layer.weight.detach().numpy()), stride, [1, 1], [1, 1], [1, 1])
        return op.add(x, column(layer.bias))
    if isinstance(layer, FilterResponseNorm):
        energy = op.reduce_mean(op.multiply(x, x), np.array([2, 3]), True)
        scale = op.divide(column(layer.gamma), op.sqrt(op.add(energy, np.float32(layer.epsilon))))
        return op.add(op.multiply(x, scale), column(layer.beta))
    assert isinstance(layer, ThresholdedLinearUnit)
    return op.maximum(x, column(layer.tau))


def _last_convolution(encoder: SDGMNet) -> tuple[np.ndarray, np.ndarray]:
    """Weight (128, 128, 8, 8) and bias (1, 128, 1, 1) of the last convolution with BatchNorm folded in."""
    norm = encoder.norm
    assert norm.running_mean is not None and norm.running_var is not None
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    weight = encoder.last.weight.detach().double() * scale[:, None, None, None]
    bias = -norm.running_mean.double() * scale
    return weight.float().numpy(), bias.float().numpy().reshape(1, -1, 1, 1)


def compile_encoder(encoder: SDGMNet, side: int, dtype: type[np.generic]) -> Callable[[np.ndarray], np.ndarray]:
    """A function from patches (N, side, side) of that type to descriptors (N, 128), one stream a core."""
    import openvino

    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "NUM_STREAMS": torch.get_num_threads()}
    hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32", **threads}
    compiled = openvino.Core().compile_model(build_graph(encoder, side, dtype), "CPU", hints)

    width = encoder.descriptor_size

    def describe(patches: np.ndarray) -> np.ndarray:
        out = np.empty((len(patches), width), dtype=np.float32)

        def collect(request: Any, start: int) -> None:
            rows = out[start : start + BATCH]
            rows[:] = request.get_output_tensor(0).data[: len(rows)]

        if len(patches) == 0:
            return out
        queue = openvino.AsyncInferQueue(compiled)
        queue.set_callback(collect)
        for start in range(0, len(patches), BATCH):
            chunk = np.ascontiguousarray(patches[start : start + BATCH], dtype=dtype)
            if len(chunk) < BATCH:  # the graph has a fixed size: fill up the last chunk
                chunk = np.concatenate([chunk, np.zeros((BATCH - len(chunk), side, side), dtype=dtype)])
            queue.start_async({0: chunk}, start)
        queue.wait_all()
        return out

    return describe
