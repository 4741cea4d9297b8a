"""The summary of a reconstruction (`reconstruct.summarise`) for people: tables and remarks."""

from typing import Any, NamedTuple

NAMED = 5  # photos in a remark; there may be many more


class Table(NamedTuple):
    header: list[str]
    rows: list[list[str]]


def tables(summary: dict[str, Any]) -> list[Table]:
    """The largest model, all models if there are several, why it is implausible, and the stages."""
    models = summary["models"]
    found = [Table(["", "value" if len(models) == 1 else "largest model"], figures(summary))]
    if len(models) > 1:
        header = ["model", "photos", "points", "track length", "reprojection error", "plausible"]
        rows = [
            [f"sparse/{number}", f"{one['registered']}", f"{one['points']}", f"{one['track_length']:.3f}",
             f"{one['reprojection_error']:.3f} px", "no" if one["implausible"] else "yes"]
            for number, one in enumerate(models)
        ]  # fmt: skip
        found.append(Table(header, rows))
    if summary["implausible"]:
        found.append(Table(["why the model is implausible"], [[reason] for reason in summary["implausible"]]))
    seconds, peaks = summary["seconds"], summary["peak_bytes_of"]
    stages = [[stage, f"{seconds[stage]:.1f}", f"{peaks.get(stage, 0) / 1e6:.0f}"] for stage in seconds]
    return [*found, Table(["stage", "seconds", "MB"], stages)]


def figures(summary: dict[str, Any]) -> list[list[str]]:
    rows = [
        ["registered photos", f"{summary['registered']} of {summary['photos']}"],
        ["points", f"{summary['points']}"],
        ["observations", f"{summary['observations']}"],
        ["track length", f"{summary['track_length']:.3f}"],
        ["observations per photo", f"{summary['observations_per_image']:.1f}"],
        ["reprojection error", f"{summary['reprojection_error']:.3f} px"],
        ["verified pairs", f"{summary['inlier_pairs']} of {summary['pairs']}"],
        ["verified matches", f"{summary['inlier_matches']}"],
        ["keypoints per photo", f"{summary['keypoints']:.0f}"],
        ["plausible", "no" if summary["implausible"] else "yes"],
    ]
    if len(summary["attempts"]) > 1:
        rows.append(["attempt", f"{summary['attempt']} ({len(summary['attempts'])} were tried)"])
    if dense := summary.get("dense"):
        rows.append([f"dense points, engine {dense['engine']}", f"{dense['points']}"])
    return rows


def remarks(summary: dict[str, Any]) -> list[str]:
    """Photos that were skipped, or are in no model."""
    found = [f"{name} {reason}; skipped." for name, reason in summary["broken"]]
    if missing := summary["unregistered"]:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        found.append(f"In no model: {', '.join(missing[:NAMED])}{more}.")
    return found
