"""The page: gradio's components on top of the functions of the other modules."""

import base64
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial, wraps
from html import escape
from pathlib import Path
from tempfile import mkdtemp
from threading import Event
from typing import Any, NamedTuple

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import gradio as gr

from sdgmnet.app import matching, understanding, uploads, watching
from sdgmnet.errors import InputError
from sdgmnet.loss.weights import COUPLED_WEIGHTS, SELF_WEIGHTS
from sdgmnet.pretrained import ALIAS, shipped_names
from sdgmnet.report import OnProgress

HOUR = 3600  # seconds: uploads and results are removed after it
REFRESH = 5  # seconds between two looks at a run
MAX_WAITING = 16  # jobs in the queue
CSS = """
.gradio-container { max-width: 1280px !important; margin: auto; }
.patches, .panels { display: flex; flex-wrap: wrap; gap: 0.75rem; }
.patches figure, .panels figure { margin: 0; }
.patches figcaption { font-size: 0.85rem; text-align: center; }
.patches img { image-rendering: pixelated; border: 3px solid transparent; }
.patches .chosen img { border-color: #0072b2; }
.patches .chosen figcaption { font-weight: bold; }
.panels figure { flex: 1 1 300px; max-width: 456px; }
.panels img { width: 100%; height: auto; background: white; border-radius: 4px; }
.tables table { display: block; overflow-x: auto; width: fit-content; max-width: calc(100vw - 5rem); border: 0; }
.tables th, .tables td { white-space: nowrap; }
.problem:not(:empty) { border-left: 4px solid #d55e00; padding-left: 0.75rem; }
"""
STATISTICS = {  # field of Modulation -> label and range of its slider
    "pos_mean": ("mean of θ⁺ (rad)", 0.2, 1.5),
    "pos_std": ("standard deviation of θ⁺", 0.02, 0.5),
    "neg_mean": ("mean of θ⁻ (rad)", 0.6, 1.57),
    "neg_std": ("standard deviation of θ⁻", 0.02, 0.5),
    "rel_mean": ("mean of θʳ = θ⁺ − θ⁻ (rad)", -1.2, 0.4),
    "rel_std": ("standard deviation of θʳ", 0.02, 0.6),
    "margin": ("margin m", 0.0, 0.99),
    "alpha": ("α", 0.1, 2.0),
}


class Setting(NamedTuple):
    """Of one app."""

    folder: Path  # of uploads and results, removed at the end
    runs: Path  # folder of training runs
    descriptors: tuple[str, ...] = ()  # offered besides SIFT, RootSIFT and the shipped weights
    is_public: bool = False  # then users cannot name paths of this machine

    @property
    def offered(self) -> list[str]:
        return list(dict.fromkeys(["sift", "rootsift", ALIAS, *shipped_names(), *self.descriptors]))


def serve(
    *, host: str, port: int | None, runs: Path, descriptors: Sequence[str], share: bool, on_ready: Callable[[str], None]
) -> None:
    """Serve until interrupted; then remove uploads and results."""
    folder = Path(mkdtemp(prefix="sdgmnet-app-"))
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    app = build(Setting(folder, runs, tuple(descriptors), share))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the files are removed then, too
    try:
        launch(app, host, port, share=share, on_ready=on_ready)
        Event().wait()
    finally:
        app.close(verbose=False)
        shutil.rmtree(folder, ignore_errors=True)


def launch(
    app: gr.Blocks, host: str, port: int | None, *, share: bool = False, on_ready: Callable[[str], None]
) -> None:
    try:
        _, url, shared = app.queue(max_size=MAX_WAITING).launch(
            server_name=host,
            server_port=port,
            share=share,
            quiet=True,
            prevent_thread_lock=True,
            max_file_size=f"{uploads.MAX_MEGABYTES}mb",
            ssr_mode=False,
            footer_links=["settings"],
            css=CSS,
            theme=theme(),
        )
    except OSError as error:
        raise InputError(f"port {port or 'of the app'} is not free ({error}): choose another --port.") from error
    on_ready(shared or url)


def theme() -> gr.themes.Base:
    """The fonts of the system: none is loaded from a server."""
    text, code = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    return gr.themes.Default(primary_hue="indigo", font=text, font_mono=code)


def build(setting: Setting) -> gr.Blocks:
    with gr.Blocks(analytics_enabled=False, title="SDGMNet", delete_cache=(HOUR, HOUR)) as app:
        gr.Markdown(
            "# SDGMNet\nLocal image descriptors: match two images, see how the loss works, watch a training run."
        )
        timer = gr.Timer(REFRESH, active=False)
        with gr.Tab("Match", id="match") as match_tab:
            add_match(setting)
        with gr.Tab("Understand", id="understand") as understand_tab:
            add_understand(app)
        with gr.Tab("Train", id="train") as train_tab:
            add_train(setting, timer, train_tab)
        for tab, active in ((match_tab, False), (understand_tab, False), (train_tab, True)):
            tab.select(partial(gr.Timer, active=active), outputs=timer, api_visibility="private")
    return app


def reported(call: Callable[..., tuple[Any, ...]], outputs: int) -> Callable[..., tuple[Any, ...]]:
    """The outputs after an empty message; or, after an InputError, its message and no outputs."""

    @wraps(call)
    def answer(*inputs: Any, **more: Any) -> tuple[Any, ...]:
        try:
            return "", *call(*inputs, **more)
        except InputError as error:
            return str(error), *([None] * outputs)

    return answer


# Match


def add_match(setting: Setting) -> None:
    examples = uploads.write_examples(setting.folder)
    with gr.Row():
        images = [
            gr.Image(
                label=name, type="filepath", sources=["upload", "clipboard"], height=260, elem_id=f"image-{number}"
            )
            for number, name in enumerate(matching.NAMES)
        ]
    if examples:
        gr.Examples([list(map(str, pair)) for pair in examples], images, label="Examples", api_visibility="private")
    with gr.Row():
        descriptors = gr.Dropdown(
            setting.offered,
            value=["sift", ALIAS],
            multiselect=True,
            max_choices=matching.MAX_DESCRIPTORS,
            allow_custom_value=not setting.is_public,
            label=f"descriptors, up to {matching.MAX_DESCRIPTORS}",
            info=None if setting.is_public else "For your own weights, type their path: runs/mine.",
        )
        keypoints = gr.Slider(100, matching.MAX_KEYPOINTS, 2000, step=100, label="keypoints per image")
        ratio = gr.Slider(0.5, 1.0, matching.RATIO, step=0.01, label="ratio test", info="1: no test")
        model = gr.Radio(["none", *matching.MIN_MATCHES], value="homography", label="verification")
    button = gr.Button("Match", variant="primary", elem_id="match-button")
    problem = gr.Markdown(elem_classes="problem", elem_id="match-problem")
    table = gr.Markdown(elem_id="match-table", elem_classes="tables")
    drawn = [
        gr.Image(
            show_label=False,
            interactive=False,
            visible=False,
            format="jpeg",
            elem_id=f"drawn-{number}",
            buttons=["download", "fullscreen"],
        )
        for number in range(matching.MAX_DESCRIPTORS)
    ]
    hint = gr.Markdown("Click near a keypoint to see its patch and its nearest neighbours.", visible=False)
    neighbours = gr.HTML(elem_id="neighbours")
    with gr.Accordion("The same on the command line and in Python", open=False):
        command = gr.Code(language="shell", label="command line", interactive=False)
        code = gr.Code(language="python", label="Python, first descriptor", interactive=False)
    state = gr.State(time_to_live=HOUR)
    outputs = [table, *drawn, hint, neighbours, command, code, state]
    button.click(
        reported(partial(run_match, setting), len(outputs)),
        [*images, descriptors, keypoints, ratio, model],
        [problem, *outputs],
        preprocess=False,  # files as they were sent: wrong ones get our messages
        api_name="match",
    )
    for number, image in enumerate(drawn):
        image.select(neighbours_of(number), state, neighbours, api_visibility="private")


def run_match(
    setting: Setting,
    first: Any,
    second: Any,
    descriptors: list[str],
    keypoints: float,
    ratio: float,
    model: Any,
    progress: gr.Progress = gr.Progress(),  # noqa: B008  gradio looks for this default
) -> tuple[Any, ...]:
    matching.require_offered(descriptors, setting.offered if setting.is_public else None)
    options = matching.MatchOptions(tuple(descriptors), int(keypoints), float(ratio), model)
    a, b = (
        uploads.read_upload(sent, setting.folder, f"the {name}")
        for sent, name in zip((first, second), matching.NAMES, strict=True)
    )
    comparison = matching.compare((a.gray, b.gray), options, shown_by(progress))
    progress(0.95, desc="drawing")
    drawn = [
        gr.Image(matching.draw_result((a.color, b.color), result, options), visible=True)
        for result in comparison.results
    ]
    drawn += [gr.Image(None, visible=False)] * (matching.MAX_DESCRIPTORS - len(drawn))
    table, command, code = (
        matching.counts_table(comparison),
        matching.command_lines(options),
        matching.python_code(options),
    )
    return table, *drawn, gr.Markdown(visible=True), "", command, code, comparison


def shown_by(progress: gr.Progress) -> OnProgress:
    return lambda stage, done, total: progress((done, total) if total else 0, desc=stage)


def neighbours_of(number: int) -> Callable[..., str]:
    """What a click on the drawing of one descriptor shows."""

    # gradio finds the event by its annotation, which functools.partial would hide.
    def show(comparison: matching.Comparison | None, event: gr.SelectData) -> str:
        if comparison is None or number >= len(comparison.results):
            return "<p>The result was removed after an hour: match the images again.</p>"
        result = comparison.results[number]
        found = matching.neighbourhood(comparison, result, *event.index)
        return matching.neighbourhood_html(found, result, comparison.options.verify != "none")

    return show


# Understand


def add_understand(app: gr.Blocks) -> None:
    gr.Markdown(
        "Fig. 2 of the paper for statistics of your choice. The loss gives a triplet the weights w_s⁺ w_c and w_s⁻ w_c: angles "
        "that are common get more, and the easiest triplets, a share m of them, get none."
    )
    default = understanding.Modulation()
    presets = list(understanding.PRESETS)
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            preset = gr.Dropdown(presets, value=presets[1], label="statistics from the authors' training logs")
            sliders = [
                gr.Slider(low, high, getattr(default, name), step=0.001, label=label, elem_id=f"slider-{name}")
                for name, (label, low, high) in STATISTICS.items()
            ]
            own = gr.Radio(list(SELF_WEIGHTS), value=default.self_weight, label="self weight")
            coupled = gr.Radio(list(COUPLED_WEIGHTS), value=default.coupled_weight, label="coupled weight")
        with gr.Column(scale=2, min_width=300):
            problem = gr.Markdown(elem_classes="problem")
            text = gr.Markdown(elem_id="powers")
            shown = gr.HTML(elem_id="panels")
    inputs = [preset, *sliders, own, coupled]
    draw = reported(run_understand, 2)
    # The latest position of a slider counts: what lies between is skipped.
    changes = [slider.change for slider in sliders] + [own.change, coupled.change, app.load]
    gr.on(
        changes,
        draw,
        inputs,
        [problem, text, shown],
        api_name="understand",
        trigger_mode="always_last",
        show_progress="hidden",
    )
    preset.input(lambda name: understanding.PRESETS[name][:6], preset, sliders[:6], api_visibility="private")


def run_understand(preset: str, *values: Any) -> tuple[str, str]:
    modulation = understanding.Modulation(*values)
    logged = understanding.PRESETS.get(preset)
    is_preset = logged is not None and astuple(modulation)[:6] == tuple(logged[:6])
    return understanding.summary(modulation, preset if is_preset else None), panels_html(modulation)


def panels_html(modulation: understanding.Modulation) -> str:
    cells = []
    for name, figure in understanding.panels(modulation).items():
        data = base64.b64encode(understanding.png(figure)).decode("ascii")
        cells.append(f'<figure><img src="data:image/png;base64,{data}" alt="{escape(name)}"></figure>')
    return f'<div class="panels">{"".join(cells)}</div>'


# Train


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
