"""The tab Understand: gradio's components on top of `understanding`."""

from dataclasses import astuple
from typing import Any

import gradio as gr

from sdgmnet.app import understanding
from sdgmnet.app.html import panels_html
from sdgmnet.app.setting import reported
from sdgmnet.errors import InputError
from sdgmnet.loss.weights import COUPLED_WEIGHTS, SELF_WEIGHTS
from sdgmnet.registry import LOSSES

NO_OTHER = "none"
OTHERS = (NO_OTHER, *(name for name in LOSSES if name != "sdgm"))  # beside it
STATISTICS = {  # field of Modulation -> label and range of its slider
    "pos_mean": ("mean of θ⁺ (rad)", 0.2, 1.5),
    "pos_std": ("standard deviation of θ⁺", 0.02, 0.5),
    "neg_mean": ("mean of θ⁻ (rad)", 0.6, 1.57),
    "neg_std": ("standard deviation of θ⁻", 0.02, 0.5),
    "rel_mean": ("mean of θʳ = θ⁺ − θ⁻ (rad)", -1.2, 0.4),
    "rel_std": ("standard deviation of θʳ", 0.02, 0.6),
    "margin": ("margin m", 0.0, 0.99),
    "alpha": ("attenuation α", 0.1, 2.0),
}


def add_understand(app: gr.Blocks) -> None:
    gr.Markdown(
        "Fig. 2 of the paper for statistics of your choice. The positive and the negative of a triplet get the weights "
        "w<sub>s</sub>⁺ w<sub>c</sub> and w<sub>s</sub>⁻ w<sub>c</sub>. The self weight w<sub>s</sub> is high for common "
        "angles (shaded: how common they are); the coupled weight w<sub>c</sub> is 0 for the easiest triplets, a share m of "
        "them. The powers P⁺ and P⁻ are the sums of these weights over a batch; the loss divides by them, so that all "
        "positives together are pulled α times as strongly as all negatives are pushed."
    )
    default = understanding.Modulation()
    presets = list(understanding.PRESETS)
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            preset = gr.Dropdown(
                presets, value=presets[1], label="statistics from the authors' training logs", elem_id="preset"
            )
            sliders = [
                gr.Slider(
                    low, high, getattr(default, name), step=0.001, label=label, elem_id=f"slider-{name}", buttons=[]
                )
                for name, (label, low, high) in STATISTICS.items()
            ]
            own = gr.Radio(list(SELF_WEIGHTS), value=default.self_weight, label="self weight")
            coupled = gr.Radio(list(COUPLED_WEIGHTS), value=default.coupled_weight, label="coupled weight")
            other = gr.Dropdown(
                list(OTHERS),
                value=NO_OTHER,
                label="another loss beside it",
                info="Its gradient, with its default options.",
                elem_id="other-loss",
            )
        with gr.Column(scale=2, min_width=300):
            problem = gr.Markdown(elem_classes="problem")
            text = gr.Markdown(elem_id="powers")
            shown = gr.HTML(elem_id="panels")
    inputs = [preset, *sliders, own, coupled, other]
    draw = reported(run_understand, lambda: [None, None])
    # The latest position of a slider counts: what lies between is skipped.
    changes = [slider.change for slider in sliders] + [own.change, coupled.change, other.change, app.load]
    gr.on(
        changes,
        draw,
        inputs,
        [problem, text, shown],
        api_name="understand",
        trigger_mode="always_last",
        show_progress="hidden",
        preprocess=False,  # numbers out of range get our messages
    )
    for slider in sliders[:6]:
        slider.input(lambda: None, outputs=preset, api_visibility="private")  # the statistics are no preset any more
    preset.input(lambda name: understanding.PRESETS[name][:6], preset, sliders[:6], api_visibility="private")


def run_understand(preset: str, *values: Any) -> tuple[str, str]:
    *chosen, other = values
    if other not in OTHERS:
        raise InputError(f"{other!r} is not offered here: choose from {', '.join(OTHERS)}.")
    modulation = understanding.Modulation(*chosen)
    logged = understanding.PRESETS.get(preset)
    is_preset = logged is not None and astuple(modulation)[:6] == tuple(logged[:6])
    figures = understanding.panels(modulation, None if other == NO_OTHER else other)
    return understanding.summary(modulation, preset if is_preset else None), panels_html(figures)
