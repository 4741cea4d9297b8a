"""`python -m reproduce table1 ...`: the tables and figures of the paper, one command each."""

import sys

from sdgmnet.cli import Command, main

COMMANDS: dict[str, Command] = {
    "table1": Command(
        "reproduce.table1:table1",
        "Table 1: train nine methods and compare their FPR@95.",
        "reproduce.arguments:Table1Arguments",
    ),
    "everything": Command(
        "reproduce.everything:everything",
        "All rows trained on equal terms, then every comparison with them.",
        "reproduce.arguments:EverythingArguments",
    ),
    "answer": Command(
        "reproduce.answer:answer",
        "The comparison on one page, from the records of everything.",
        "reproduce.arguments:AnswerArguments",
    ),
    "table2-4": Command(
        "reproduce.stages:table2_4",
        "Tables 2-4: running statistics along training.",
        "reproduce.arguments:StagesArguments",
    ),
    "table5": Command(
        "reproduce.benchmarks:table5",
        "Table 5: reconstruction, next to the paper's numbers.",
        "reproduce.arguments:Table5Arguments",
    ),
    "fig1": Command(
        "reproduce.triplets:fig1",
        "Fig. 1 from real triplets: patches, sphere, gradients.",
        "reproduce.arguments:Fig1Arguments",
    ),
    "fig2": Command(
        "reproduce.modulation:fig2",
        "Fig. 2: modulation functions over a run's angles.",
        "reproduce.arguments:Fig2Arguments",
    ),
    "fig3": Command(
        "reproduce.architecture:fig3",
        "Fig. 3: diagram of an encoder, read from the module.",
        "reproduce.arguments:Fig3Arguments",
    ),
    "fig4": Command(
        "reproduce.benchmarks:fig4",
        "Fig. 4: HPatches, next to published numbers.",
        "reproduce.arguments:Fig4Arguments",
    ),
    "fig5": Command(
        "reproduce.benchmarks:fig5", "Fig. 5: matches of the hardest image pairs.", "reproduce.arguments:Fig5Arguments"
    ),
    "fig6a": Command(
        "reproduce.checkpoints:fig6a", "Fig. 6 (a): FPR@95 along training.", "reproduce.arguments:Fig6aArguments"
    ),
    "fig6b": Command(
        "reproduce.sweeps:fig6b", "Fig. 6 (b): sweeps over m and α.", "reproduce.arguments:Fig6bArguments"
    ),
    "fig6c": Command(
        "reproduce.ablation:fig6c",
        "Fig. 6 (c): ablation of self weight and power adjustment.",
        "reproduce.arguments:Fig6cArguments",
    ),
    "fig7": Command(
        "reproduce.sweeps:fig7",
        "Fig. 7: α against HPatches mAP and easy-tough gap.",
        "reproduce.arguments:Fig7Arguments",
    ),
    "reproducibility": Command(
        "reproduce.checkpoints:reproducibility",
        "Section V-A: several seeds, mean and spread.",
        "reproduce.arguments:ReproducibilityArguments",
    ),
    "learning-rate": Command(
        "reproduce.extras:learning_rate",
        "Section III-E: the equivalent learning rate of a run.",
        "reproduce.arguments:LearningRateArguments",
    ),
    "margin-share": Command(
        "reproduce.extras:margin_share",
        "Section V-B: the share of triplets beyond the margin m.",
        "reproduce.arguments:MarginShareArguments",
    ),
    "norms": Command(
        "reproduce.extras:norms",
        "Section III-A: length of features against contrast of patches.",
        "reproduce.arguments:NormsArguments",
    ),
    "modulation": Command(
        "reproduce.modulation:modulation",
        "Gradient of any loss over the angles of a triplet.",
        "reproduce.arguments:ModulationArguments",
    ),
}

if __name__ == "__main__":
    sys.exit(main(None, COMMANDS, "python -m reproduce"))
