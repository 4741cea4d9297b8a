"""`sdgmnet app`."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from sdgmnet.descriptors import accepted_forms, require_form
from sdgmnet.errors import InputError
from sdgmnet.options import Flag, Option, require_options
from sdgmnet.report import print_aside

HIGHEST_PORT = 65_535


@dataclass(frozen=True)
class AppArguments:
    """Match images, move the statistics of the loss and watch training runs, on a page in the browser.

    For example:

        sdgmnet app
        sdgmnet app --port 8080 --runs runs --descriptors mine=runs/one

    The page is served to this machine alone, and nothing is sent elsewhere. Uploads are removed when the command ends;
    while it runs, those older than an hour. Needs gradio: pip install 'sdgmnet[app]'.
    """

    port: int | None = None
    """Port of the page; default: the first free one from 7860."""
    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0: other machines can open the page. Their users cannot name paths of this machine."""
    runs: Path = Path("runs")
    """Folder of training runs to watch."""
    descriptors: Annotated[
        tuple[str, ...],
        Option(
            help=f"Further descriptors to offer, such as your own weights: {accepted_forms()}.",
            metavar="[LABEL=]DESCRIPTOR ...",
        ),
    ] = ()
    share: Flag = False
    """Also open a public link through gradio's server. Its users cannot name paths of this machine."""


def main(arguments: AppArguments) -> None:
    require_options(arguments, port=1)
    if arguments.port is not None and arguments.port > HIGHEST_PORT:
        raise InputError(f"--port must be at most {HIGHEST_PORT}, not {arguments.port}.")
    if find_spec("gradio") is None:
        raise InputError("the app needs gradio: pip install 'sdgmnet[app]'.")
    for text in arguments.descriptors:
        require_form(text)
    print_aside("Starting the page ...")
    from sdgmnet.app.page import serve

    serve(
        host=arguments.host,
        port=arguments.port,
        runs=arguments.runs,
        descriptors=arguments.descriptors,
        share=arguments.share,
        on_ready=lambda url: print_aside(f"Open {url} in a browser. Ctrl+C ends the app."),
    )
