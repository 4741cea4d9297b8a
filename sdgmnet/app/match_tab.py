"""The tab Match: gradio's components on top of `matching`."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import cv2
import gradio as gr
import numpy as np

from sdgmnet.app import matching, uploads
from sdgmnet.app.setting import CLEAR, Setting, hidden, reported, shown_by
from sdgmnet.pretrained import ALIAS

HINT = (
    "Each line is a match: coloured by its place in the first image if it is an inlier, otherwise faint and red. Click near a "
    "keypoint to see its patch and its nearest neighbours."
)
OWN_WEIGHTS = "sdgmnet: the best shipped weights. For your own, type their path: runs/mine."
SCROLL = "() => document.querySelector('#neighbours-{}').scrollIntoView({{behavior: 'smooth', block: 'nearest'}})"


class Shown(NamedTuple):
    """What a click on a drawing needs."""

    comparison: matching.Comparison
    drawn: list[np.ndarray]  # per descriptor, as JPEG


def add_match(setting: Setting, app: gr.Blocks) -> None:
    examples = uploads.write_examples(setting.folder)
    with gr.Row():
        images = [
            gr.Image(
                label=name, type="filepath", sources=["upload", "clipboard"], height=260, elem_id=f"image-{number}"
            )
            for number, name in enumerate(matching.NAMES)
        ]
    if examples:
        gr.Examples(
            [list(map(str, pair)) for pair in examples],
            images,
            example_labels=list(uploads.EXAMPLES),
            label="Examples",
            elem_id="examples",
            api_visibility="private",
        )
    with gr.Row():
        descriptors = gr.Dropdown(
            setting.offered,
            value=["sift", ALIAS],
            multiselect=True,
            max_choices=matching.MAX_DESCRIPTORS,
            allow_custom_value=not setting.is_public,
            label=f"descriptors, up to {matching.MAX_DESCRIPTORS}",
            info=None if setting.is_public else OWN_WEIGHTS,
        )
        keypoints = gr.Slider(100, matching.MAX_KEYPOINTS, 2000, step=100, label="keypoints per image")
        ratio = gr.Slider(
            0.5, 1.0, matching.RATIO, step=0.01, label="ratio test", info="lower: fewer and safer matches; 1: no test"
        )
        model = gr.Radio(
            ["none", *matching.MIN_MATCHES],
            value="homography",
            label="verification",
            info="homography: planes or rotation; fundamental: any static scene",
        )
    button = gr.Button("Match", variant="primary", elem_id="match-button")
    problem = gr.Markdown(elem_classes="problem", elem_id="match-problem")
    table = gr.Markdown(elem_id="match-table", elem_classes="tables")
    hint = gr.Markdown(elem_id="hint")
    drawn, neighbours = [], []
    for number in range(matching.MAX_DESCRIPTORS):
        drawn.append(
            gr.Image(
                show_label=False,
                interactive=False,
                visible=False,
                format="jpeg",
                elem_id=f"drawn-{number}",
                buttons=["download", "fullscreen"],
            )
        )
        neighbours.append(gr.HTML(elem_id=f"neighbours-{number}"))
    with gr.Accordion("The same on the command line and in Python", open=False):
        command = gr.Code(language="shell", label="command line", interactive=False)
        code = gr.Code(language="python", label="Python, first descriptor", interactive=False)
    state = gr.State(time_to_live=uploads.HOUR)
    outputs = [table, *drawn, hint, *neighbours, command, code, state]
    button.click(None, None, problem, js=CLEAR)
    button.click(
        reported(
            partial(run_match, setting), lambda: [None, *(hidden() for _ in drawn), *[None] * (4 + len(neighbours))]
        ),
        [*images, descriptors, keypoints, ratio, model],
        [problem, *outputs],
        preprocess=False,  # files as they were sent: wrong ones get our messages
        show_progress_on=table,
        api_name="match",
    )
    for number, (image, nearest) in enumerate(zip(drawn, neighbours, strict=True)):
        image.select(
            neighbours_of(number), state, [nearest, image], show_progress_on=nearest, api_visibility="private"
        ).then(None, js=SCROLL.format(number))

    # gradio finds the request by its annotation. It would keep the state for an hour.
    def remove_state(request: gr.Request) -> None:
        app.state_holder.delete_state(request.session_hash)

    app.unload(remove_state)


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
    images = [matching.draw_result((a.color, b.color), result, options) for result in comparison.results]
    drawn = [cv2.imencode(".jpg", image)[1] for image in images]
    shown = [gr.Image(image, visible=True) for image in images]
    shown += [hidden() for _ in range(matching.MAX_DESCRIPTORS - len(images))]
    table, command, code = (
        matching.counts_table(comparison),
        matching.command_lines(options),
        matching.python_code(options),
    )
    return table, *shown, HINT, *[""] * matching.MAX_DESCRIPTORS, command, code, Shown(comparison, drawn)


def neighbours_of(number: int) -> Callable[..., tuple[Any, ...]]:
    """What a click on the drawing of one descriptor shows."""

    # gradio finds the event by its annotation, which functools.partial would hide.
    def show(shown: Shown | None, event: gr.SelectData) -> tuple[Any, ...]:
        if shown is None or number >= len(shown.drawn):
            return "<p>The result was removed: match the images again.</p>", gr.skip()
        comparison, result = shown.comparison, shown.comparison.results[number]
        found = matching.neighbourhood(comparison, result, *event.index)
        drawn = np.asarray(cv2.imdecode(shown.drawn[number], cv2.IMREAD_COLOR))
        marked = matching.mark_neighbourhood(drawn, comparison, result, found)
        return matching.neighbourhood_html(found, result, comparison.options.verify != "none"), marked

    return show
