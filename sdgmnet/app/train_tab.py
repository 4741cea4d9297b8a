"""The tab Train: gradio's components on top of `watching`."""

from functools import partial
from typing import Any

import gradio as gr

from sdgmnet.app import watching
from sdgmnet.app.setting import Setting, reported

REFRESH = 5  # seconds between two looks at a run


def add_train(setting: Setting, timer: gr.Timer, tab: gr.Tab) -> None:
    gr.Markdown(f"A training run below `{setting.runs}`, read again every {REFRESH} seconds while this tab is open.")
    run = gr.Dropdown([], label="run", elem_id="run")
    problem = gr.Markdown(elem_classes="problem", elem_id="train-problem")
    curves = gr.Image(
        show_label=False, interactive=False, format="png", elem_id="curves", buttons=["download", "fullscreen"]
    )
    text = gr.Markdown(elem_id="run-summary", elem_classes="tables")
    outputs = [problem, curves, text]
    show = reported(partial(run_train, setting), 2)
    listed = tab.select(partial(list_runs, setting), run, run, api_visibility="private")
    # The list of runs changes; `run_log` checks the name instead of gradio.
    listed.then(show, run, outputs, preprocess=False, api_visibility="private")
    run.input(show, run, outputs, preprocess=False, api_name="train")
    timer.tick(show, run, outputs, preprocess=False, show_progress="hidden", api_visibility="private")


def list_runs(setting: Setting, chosen: str | None) -> gr.Dropdown:
    found = watching.find_runs(setting.runs)
    return gr.Dropdown(found, value=chosen if chosen in found else next(iter(found), None))


def run_train(setting: Setting, name: str | None) -> tuple[Any, str]:
    log = watching.run_log(setting.runs, name)
    return watching.draw_run(log), watching.run_summary(log)
