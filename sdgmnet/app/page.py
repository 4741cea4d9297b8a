"""The page. Each tab is a module of gradio's components, such as `match_tab`, on top of plain functions, such as `matching`."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from threading import Event

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import gradio as gr

from sdgmnet.app import uploads
from sdgmnet.app.match_tab import add_match
from sdgmnet.app.reconstruct_tab import add_reconstruct
from sdgmnet.app.setting import Setting
from sdgmnet.app.train_tab import REFRESH, add_train
from sdgmnet.app.understand_tab import add_understand
from sdgmnet.errors import InputError
from sdgmnet.report import print_aside

MAX_WAITING = 16  # jobs in the queue
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # hosts that other machines cannot reach
LAST_SECONDS = 10  # for jobs to stop when the app ends
CSS = """
.gradio-container { width: 100%; max-width: 1280px !important; margin: auto; }
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
.model { min-height: 8rem; }
#match-table { min-height: 5rem; }
.model iframe { width: 100%; height: min(70vh, 640px); border: 0; border-radius: 4px; }
.problem .problem:not(:empty) { border-left: 4px solid #d55e00; padding-left: 0.75rem; }
.triplets { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; }
.triplets .patches { flex-wrap: nowrap; }
:focus-visible { outline: 3px solid #4f46e5 !important; outline-offset: 2px; }
input[type=number]:focus-visible, .reset-button:focus-visible { outline-offset: -3px; }
.dark :focus-visible { outline-color: #a5b4fc !important; }
@media (max-width: 480px) {
  .tab-container button { padding: 0.5rem 0.4rem; }
  .tables td:first-child { white-space: normal; overflow-wrap: normal; word-break: normal; min-width: 7rem; }
  .tables th, .tables td { padding: 0.4rem 0.5rem !important; }
}
"""


def serve(
    *, host: str, port: int | None, runs: Path, descriptors: Sequence[str], share: bool, on_ready: Callable[[str], None]
) -> None:
    """Serve until interrupted; then remove uploads and results."""
    folder = Path(mkdtemp(prefix="sdgmnet-app-"))
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    setting = Setting(folder, runs, tuple(descriptors), is_public=share or host not in LOOPBACK)
    app = build(setting)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the files are removed then, too
    try:
        launch(app, host, port, share=share, on_ready=on_ready)
        Event().wait()
    finally:
        app.close(verbose=False)
        all_ended = setting.jobs.stop_all(LAST_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        if not all_ended:
            print_aside(f"A reconstruction did not stop within {LAST_SECONDS} s: remove {folder} if it is still there.")


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
    with gr.Blocks(analytics_enabled=False, title="SDGMNet", delete_cache=(uploads.HOUR, uploads.HOUR)) as app:
        gr.Markdown(
            "# SDGMNet\nLocal image descriptors: match two images, see how the loss works, watch a training run, reconstruct a "
            "scene from photos."
        )
        timer = gr.Timer(REFRESH, active=False)
        with gr.Tab("Match", id="match") as match:
            add_match(setting, app)
        with gr.Tab("Understand", id="understand") as understand:
            add_understand(app)
        with gr.Tab("Train", id="train") as train:
            add_train(setting, timer, train)
        with gr.Tab("Reconstruct", id="reconstruct") as reconstruct:
            add_reconstruct(setting, app)
        for tab in (match, understand, train, reconstruct):
            tab.select(partial(gr.Timer, active=tab is train), outputs=timer, api_visibility="private")
    return app
