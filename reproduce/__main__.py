"""`python -m reproduce table1 ...`: the tables and figures of the paper, one command each."""

import sys

from sdgmnet.cli import Command, main

COMMANDS: dict[str, Command] = {
    "table1": Command("reproduce.table1:table1", "Table 1: train nine methods and compare their FPR@95."),
    "table2-4": Command("reproduce.stages:table2_4", "Tables 2-4: running statistics along training."),
    "table5": Command("reproduce.benchmarks:table5", "Table 5: reconstruction, next to the paper's numbers."),
    "fig1": Command("reproduce.triplets:fig1", "Fig. 1 from real triplets: patches, sphere, gradients."),
    "fig2": Command("reproduce.modulation:fig2", "Fig. 2: modulation functions over a run's angles."),
    "fig3": Command("reproduce.architecture:fig3", "Fig. 3: diagram of an encoder, read from the module."),
    "fig4": Command("reproduce.benchmarks:fig4", "Fig. 4: HPatches, next to published numbers."),
    "fig5": Command("reproduce.benchmarks:fig5", "Fig. 5: matches of the hardest image pairs."),
    "fig6a": Command("reproduce.checkpoints:fig6a", "Fig. 6 (a): FPR@95 along training."),
    "fig6b": Command("reproduce.sweeps:fig6b", "Fig. 6 (b): sweeps over m and α."),
    "fig6c": Command("reproduce.ablation:fig6c", "Fig. 6 (c): ablation of self weight and power adjustment."),
    "fig7": Command("reproduce.sweeps:fig7", "Fig. 7: α against HPatches mAP and easy-tough gap."),
    "reproducibility": Command("reproduce.checkpoints:reproducibility", "Section V-A: several seeds, mean and spread."),
    "learning-rate": Command("reproduce.extras:learning_rate", "Section III-E: the equivalent learning rate of a run."),
    "margin-share": Command("reproduce.extras:margin_share", "Section V-B: the share of triplets beyond the margin m."),
    "norms": Command("reproduce.extras:norms", "Section III-A: length of features against contrast of patches."),
    "modulation": Command("reproduce.modulation:modulation", "Gradient of any loss over the angles of a triplet."),
}

if __name__ == "__main__":
    sys.exit(main(None, COMMANDS, "python -m reproduce"))
