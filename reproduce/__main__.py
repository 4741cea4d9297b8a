"""`python -m reproduce table1 ...`: the tables and figures of the paper, one command each."""

import sys

from sdgmnet.cli import Command, main


def command(place: str, options: str, summary: str) -> Command:
    return Command(f"reproduce.{place}", summary, f"reproduce.arguments:{options}")


COMMANDS: dict[str, Command] = {
    "table1": command("table1:table1", "Table1Arguments", "Table 1: train nine methods and compare their FPR@95."),
    "everything": command(
        "everything:everything",
        "EverythingArguments",
        "All rows trained on equal terms, then every comparison with them.",
    ),
    "answer": command(
        "answer:answer", "AnswerArguments", "The comparison on one page, from the records of everything."
    ),
    "table2-4": command("stages:table2_4", "StagesArguments", "Tables 2-4: running statistics along training."),
    "table5": command("benchmarks:table5", "Table5Arguments", "Table 5: reconstruction, next to the paper's numbers."),
    "fig1": command("triplets:fig1", "Fig1Arguments", "Fig. 1 from real triplets: patches, sphere, gradients."),
    "fig2": command("modulation:fig2", "Fig2Arguments", "Fig. 2: modulation functions over a run's angles."),
    "fig3": command("architecture:fig3", "Fig3Arguments", "Fig. 3: diagram of an encoder, read from the module."),
    "fig4": command("benchmarks:fig4", "Fig4Arguments", "Fig. 4: HPatches, next to published numbers."),
    "fig5": command("benchmarks:fig5", "Fig5Arguments", "Fig. 5: matches of the hardest image pairs."),
    "fig6a": command("checkpoints:fig6a", "Fig6aArguments", "Fig. 6 (a): FPR@95 along training."),
    "fig6b": command("sweeps:fig6b", "Fig6bArguments", "Fig. 6 (b): sweeps over m and α."),
    "fig6c": command("ablation:fig6c", "Fig6cArguments", "Fig. 6 (c): ablation of self weight and power adjustment."),
    "fig7": command("sweeps:fig7", "Fig7Arguments", "Fig. 7: α against HPatches mAP and easy-tough gap."),
    "reproducibility": command(
        "checkpoints:reproducibility", "ReproducibilityArguments", "Section V-A: several seeds, mean and spread."
    ),
    "learning-rate": command(
        "extras:learning_rate", "LearningRateArguments", "Section III-E: the equivalent learning rate of a run."
    ),
    "margin-share": command(
        "extras:margin_share", "MarginShareArguments", "Section V-B: the share of triplets beyond the margin m."
    ),
    "norms": command(
        "extras:norms", "NormsArguments", "Section III-A: length of features against contrast of patches."
    ),
    "modulation": command(
        "modulation:modulation", "ModulationArguments", "Gradient of any loss over the angles of a triplet."
    ),
}

if __name__ == "__main__":
    sys.exit(main(None, COMMANDS, "python -m reproduce"))
