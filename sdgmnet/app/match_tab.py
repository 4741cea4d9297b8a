"""The tab Match: gradio's components on top of `matching`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from sdgmnet.app import matching, uploads
from sdgmnet.app.setting import Setting, reported, shown_by
from sdgmnet.pretrained import ALIAS


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
    hint = gr.Markdown("Click near a keypoint to see its patch and its nearest neighbours.", visible=False)
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
    neighbours = gr.HTML(elem_id="neighbours")
    with gr.Accordion("The same on the command line and in Python", open=False):
        command = gr.Code(language="shell", label="command line", interactive=False)
        code = gr.Code(language="python", label="Python, first descriptor", interactive=False)
    state = gr.State(time_to_live=uploads.HOUR)
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
    keypoints: float | None,
    ratio: float | None,
    model: Any,
    progress: gr.Progress = gr.Progress(),  # noqa: B008  gradio looks for this default
) -> tuple[Any, ...]:
    matching.require_offered(descriptors, setting.offered if setting.is_public else None)
    count, ratio = uploads.read_number(keypoints, "keypoints per image"), uploads.read_number(ratio, "ratio test")
    options = matching.MatchOptions(tuple(descriptors), int(count), float(ratio), model)
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
