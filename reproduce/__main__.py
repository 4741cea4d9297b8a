"""`python -m reproduce table1 ...`: the tables and figures of the paper, one command each."""

import sys

from sdgmnet.cli import Command, main

COMMANDS: dict[str, Command] = {
    "table1": Command("reproduce.table1:table1", "Table 1: FPR@95 of nine methods, trained as needed."),
    "table2-4": Command("reproduce.runs:statistics", "Tables 2-4: running statistics of runs."),
    "fig6a": Command("reproduce.runs:fig6a", "Fig. 6 (a): FPR@95 along training."),
    "fig6b": Command("reproduce.sweep_commands:fig6b", "Fig. 6 (b): sweeps over m and α."),
    "fig6c": Command("reproduce.runs:fig6c", "Fig. 6 (c): ablation, and the ratios of powers."),
    "fig7": Command("reproduce.sweep_commands:fig7", "Fig. 7: α against HPatches' mAP and its gap."),
    "reproducibility": Command("reproduce.runs:reproducibility", "Section V-A: several seeds, their mean and spread."),
    "fig1": Command("reproduce.figures:fig1", "Fig. 1 from real triplets: patches, sphere, gradients."),
    "fig2": Command("reproduce.figures:fig2", "Fig. 2: modulation functions over a run's angles."),
    "fig3": Command("reproduce.figures:fig3", "Fig. 3: an encoder, drawn from the module itself."),
    "fig4": Command("reproduce.benchmarks:fig4", "Fig. 4: HPatches, beside published numbers."),
    "fig5": Command("reproduce.benchmarks:fig5", "Fig. 5: matches of the hardest pairs of images."),
    "table5": Command("reproduce.benchmarks:table5", "Table 5: reconstruction, beside the paper's."),
    "learning-rate": Command(
        "reproduce.extras:learning_rate", "The equivalent learning rate of a run (Section III-E)."
    ),
    "released": Command(
        "reproduce.extras:released", "The share of triplets that the margin m lets through (Section V-B)."
    ),
    "norms": Command("reproduce.extras:norms", "Length of features against contrast of patches (Section III-A)."),
    "modulation": Command(
        "reproduce.modulation_command:main", "The modulation microscope: what a loss does to angles, any loss."
    ),
}

if __name__ == "__main__":
    sys.exit(main(None, COMMANDS, "python -m reproduce"))
