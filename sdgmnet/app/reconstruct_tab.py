"""The tab Reconstruct: gradio's components on top of `reconstructing`."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import gradio as gr

from sdgmnet.app import reconstructing
from sdgmnet.app.jobs import stopped_by
from sdgmnet.app.matching import require_offered
from sdgmnet.app.setting import CLEAR, Setting, hidden, reported, shown_by
from sdgmnet.app.uploads import read_number
from sdgmnet.errors import Interrupted

DEFAULT = reconstructing.PhotoOptions()
ENABLE, DISABLE = (f"() => ({{__type__: 'update', interactive: {value}}})" for value in ("true", "false"))


def add_reconstruct(setting: Setting, app: gr.Blocks) -> None:
    if find_spec("pycolmap") is None:
        gr.Markdown("This tab needs COLMAP. Install it with `pip install 'sdgmnet[sfm]'` and start the app again.")
        return
    gr.Markdown(
        f"{reconstructing.MIN_PHOTOS} to {reconstructing.MAX_PHOTOS} photos of one scene, from viewpoints not too far apart, "
        "become cameras and points in 3-D."
    )
    with gr.Row():
        photos = gr.File(
            label="photos", file_count="multiple", file_types=["image"], height=260, elem_id="photos", scale=2
        )
        with gr.Column(min_width=300):
            descriptor = gr.Dropdown(
                setting.offered,
                value=DEFAULT.descriptor,
                allow_custom_value=not setting.is_public,
                label="descriptor",
                info="sdgmnet-fast: smaller and faster than sdgmnet."
                + ("" if setting.is_public else " For your own weights, type their path: runs/mine."),
            )
            keypoints = gr.Slider(
                500, reconstructing.MAX_KEYPOINTS, DEFAULT.keypoints, step=500, label="keypoints per photo"
            )
            size = gr.Radio(
                list(reconstructing.SIZES),
                value=DEFAULT.size,
                label="longest side in pixels",
                info="Larger photos are resized.",
            )
    with gr.Row():
        button = gr.Button("Reconstruct", variant="primary", elem_id="reconstruct-button")
        cancel = gr.Button("Cancel", interactive=False, elem_id="cancel-button")
    problem = gr.Markdown(elem_classes="problem", elem_id="reconstruct-problem")
    remarks = gr.Markdown(elem_id="model-remarks")
    model = gr.HTML(elem_id="model", elem_classes="model")
    with gr.Row():
        files = [
            gr.DownloadButton(f"Download {name}", visible=False, elem_id=name.replace(".", "-"))
            for name in reconstructing.DOWNLOADS
        ]
    tables = gr.Markdown(elem_id="model-summary", elem_classes="tables")
    outputs = [remarks, model, *files, tables]
    button.click(None, None, problem, js=CLEAR)
    button.click(None, None, cancel, js=ENABLE)
    job = button.click(
        reported(runner(setting), lambda: [None, None, *(hidden() for _ in files), None]),
        [photos, descriptor, keypoints, size],
        [problem, *outputs],
        preprocess=False,  # files as they were sent: wrong ones get our messages
        show_progress_on=model,
        api_name="reconstruct",
    )
    job.then(None, None, cancel, js=DISABLE)

    # gradio finds the request by its annotation.
    def stop(request: gr.Request) -> None:
        setting.jobs.stop(request.session_hash)

    def cancelled(request: gr.Request) -> str:
        stop(request)
        return "Cancelled."

    cancel.click(None, None, cancel, js=DISABLE)
    cancel.click(cancelled, None, problem, cancels=[job], queue=False, api_name="cancel")
    app.unload(stop)


def runner(setting: Setting) -> Callable[..., tuple[Any, ...]]:
    def run(
        sent: Any,
        descriptor: str,
        keypoints: float | None,
        size: int | None,
        request: gr.Request,
        progress: gr.Progress = gr.Progress(),  # noqa: B008  gradio looks for this default
    ) -> tuple[Any, ...]:
        require_offered([descriptor], setting.offered if setting.is_public else None)
        count, side = read_number(keypoints, "keypoints per photo"), read_number(size, "longest side in pixels")
        options = reconstructing.PhotoOptions(descriptor, int(count), int(side))
        with setting.jobs.started(request.session_hash) as stop:
            on_progress = stopped_by(stop, shown_by(progress))
            try:
                photos = reconstructing.require_photos(sent, setting.folder)
                on_progress("reading the photos", 0, 0)
                found = reconstructing.reconstruct_photos(photos, options, setting.folder, on_progress)
            except Exception as error:  # whatever comes of files that are removed while they are written
                if setting.folder.is_dir():
                    raise
                raise Interrupted("The app has ended.") from error
        files = [gr.DownloadButton(value=str(path), visible=True) for path in found.files]
        remarks, tables = reconstructing.remarks_text(found.summary), reconstructing.tables_text(found.summary)
        return remarks, reconstructing.embedded(found.page), *files, tables

    return run
