"""The tab Train: gradio's components on top of `watching`."""

from functools import partial
from typing import Any

import gradio as gr

from sdgmnet.app import watching
from sdgmnet.app.html import panels_html
from sdgmnet.app.setting import Setting, reported

REFRESH = 5  # seconds between two looks at a run


def add_train(setting: Setting, timer: gr.Timer, tab: gr.Tab) -> None:
    gr.Markdown(
        f"A training run below `{setting.runs}` (another folder: `sdgmnet app --runs FOLDER`), read again every {REFRESH} "
        "seconds while this tab is open."
    )
    run = gr.Dropdown([], label="run", elem_id="run")
    problem = gr.Markdown(elem_classes="problem", elem_id="train-problem")
    text = gr.Markdown(elem_id="run-progress")
    curves = gr.HTML(elem_id="curves")
    hardest = gr.HTML(elem_id="hardest")
    table = gr.Markdown(elem_id="run-summary", elem_classes="tables")
    outputs = [problem, text, curves, hardest, table]
    show = reported(partial(run_train, setting), lambda: [None] * 4)
    listed = tab.select(partial(list_runs, setting), run, run, api_visibility="private")
    # The list of runs changes; `run_log` checks the name instead of gradio.
    listed.then(show, run, outputs, preprocess=False, api_visibility="private")
    run.input(show, run, outputs, preprocess=False, api_name="train")
    run.focus(partial(list_runs, setting), run, run, show_progress="hidden", api_visibility="private")
    ticked = timer.tick(partial(list_first_run, setting), run, run, show_progress="hidden", api_visibility="private")
    ticked.then(show, run, outputs, preprocess=False, show_progress="hidden", api_visibility="private")


def list_runs(setting: Setting, chosen: str | None) -> gr.Dropdown:
    found = watching.find_runs(setting.runs)
    return gr.Dropdown(found, value=chosen if chosen in found else next(iter(found), None))


def list_first_run(setting: Setting, chosen: str | None) -> Any:
    """While there was none: a run can start after the tab was opened."""
    return gr.skip() if chosen else list_runs(setting, None)


def run_train(setting: Setting, name: str | None) -> tuple[str, str, str, str]:
    log = watching.run_log(setting.runs, name)
    return (
        watching.run_progress(log),
        panels_html(watching.run_curves(log)),
        watching.hardest_html(log),
        watching.run_summary(log),
    )
