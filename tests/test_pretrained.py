"""Weights on disk: what is loaded is what was saved, and everything else is refused by name."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sdgmnet import pretrained
from sdgmnet.cli import main
from sdgmnet.encoders import ENCODERS, SDGMNet, TFeat, load_encoder, save_encoder
from sdgmnet.errors import InputError
from sdgmnet.pretrained import BEST, shipped_names

CARD = {"trained_on": ["liberty"], "fpr": 0.0123, "note": "Größe"}


@pytest.fixture(scope="module")
def encoder() -> SDGMNet:
    torch.manual_seed(0)
    encoder = SDGMNet().eval()
    assert encoder.norm.running_mean is not None
    encoder.norm.running_mean.normal_()
    return encoder


@pytest.fixture
def saved(tmp_path: Path, encoder: SDGMNet) -> Path:
    save_encoder(encoder, tmp_path / "weights.safetensors", CARD)
    return tmp_path / "weights.safetensors"


def write(path: Path, tensors: dict[str, torch.Tensor], card: object = None) -> Path:
    save_file(tensors, path, metadata=None if card is None else {"card": json.dumps(card)})
    return path


def assert_refused(path: Path, message: str | None = None) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_encoder(path)
    assert str(path) in str(caught.value)


def assert_same_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()), rtol=0, atol=0)


def test_round_trip_is_bit_equal(saved: Path, encoder: SDGMNet) -> None:
    """With the card in the file; the one next to it is for people only."""
    assert sorted(path.name for path in saved.parent.iterdir()) == ["weights.json", "weights.safetensors"]
    beside = json.loads(saved.with_suffix(".json").read_text(encoding="utf-8"))
    saved.with_suffix(".json").unlink()
    loaded, card = load_encoder(str(saved))
    assert card == beside == {"encoder": "sdgmnet", "dropout": 0.3, "window": 12, **CARD}
    assert type(loaded) is SDGMNet and not loaded.training
    assert_same_weights(loaded, encoder)
    patches = torch.rand(3, 1, 32, 32)
    assert torch.equal(encoder(patches), loaded(patches))


def test_a_run_folder_gives_its_best_weights(tmp_path: Path, encoder: SDGMNet) -> None:
    save_encoder(SDGMNet(), tmp_path / "last.safetensors", {"which": "last"})
    save_encoder(encoder, tmp_path / "best.safetensors", {"which": "best"})
    loaded, card = load_encoder(tmp_path)
    assert card["which"] == "best"
    assert_same_weights(loaded, encoder)


def test_weights_without_a_card_are_taken_for_the_default_encoder(tmp_path: Path, encoder: SDGMNet) -> None:
    assert_same_weights(load_encoder(write(tmp_path / "bare.safetensors", encoder.state_dict()))[0], encoder)


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none.safetensors", "does not exist")
    (tmp_path / "text.safetensors").write_text("text")
    assert_refused(tmp_path / "text.safetensors", "is not a safetensors file")
    with pytest.raises(InputError, match="does not exist") as caught:
        load_encoder(tmp_path)
    assert str(tmp_path / "best.safetensors") in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.0000005, 0.0001, 0.5, 0.999999])
def test_files_cut_off_are_refused(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    assert_refused(saved, "weights|plain|torch")


def test_pickles_are_refused_and_never_run(tmp_path: Path, encoder: SDGMNet) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "sprung",)

    plain, torch_made = tmp_path / "plain.safetensors", tmp_path / "torch.safetensors"
    plain.write_bytes(pickle.dumps({"last.weight": Trap()}))
    torch.save({**encoder.state_dict(), "trap": Trap()}, torch_made)
    assert_refused(plain, "weights|plain|torch")
    assert_refused(torch_made, "weights|plain|torch")
    assert not (tmp_path / "sprung").exists()
    pickle.loads(plain.read_bytes())
    assert (tmp_path / "sprung").exists()  # the trap was live


@pytest.mark.parametrize(
    "card",
    ["{", '["sdgmnet"]', '"sdgmnet"', '{"encoder": ["sdgmnet"]}', "{}", '{"encoder": "hynet"}']
    + [f'{{"encoder": "sdgmnet", "trained_on": {names}}}' for names in ("5", '"liberty"', "[1]")]
    + ['{"encoder": "sdgmnet", "dropout": "much"}', '{"encoder": "tfeat", "dropout": 0.3}', '{"encoder": "l2net"}'],
)
def test_bad_cards_are_refused(tmp_path: Path, encoder: SDGMNet, card: str) -> None:
    save_file(encoder.state_dict(), tmp_path / "bad.safetensors", metadata={"card": card})
    assert_refused(tmp_path / "bad.safetensors")


def test_weights_that_do_not_match_or_are_not_finite_are_refused(saved: Path) -> None:
    tensors = load_file(saved)
    for key, value in (("first.0.bias", float("nan")), ("norm.running_var", float("inf"))):
        spoiled = {**tensors, key: tensors[key].clone()}
        spoiled[key][1] = value
        assert_refused(write(saved, spoiled, {"encoder": "sdgmnet"}), "NaN")
    missing = {key: value for key, value in tensors.items() if key != "last.weight"}
    assert_refused(write(saved, missing), "last.weight")
    assert_refused(write(saved, {**tensors, "stranger": torch.zeros(1)}), "stranger")
    assert_refused(write(saved, {**tensors, "last.weight": torch.zeros(64, 128, 8, 8)}), "last.weight")


@pytest.fixture
def shipped(tmp_path: Path, encoder: SDGMNet, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that ships two sets of weights."""
    torch.manual_seed(1)
    save_encoder(encoder, tmp_path / "weights" / f"{pretrained.BEST}.safetensors", {"which": "best"})
    save_encoder(SDGMNet(), tmp_path / "weights" / "aerial.safetensors", {"which": "aerial"})
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path / "weights")
    return tmp_path / "weights"


def test_shipped_weights_are_loaded_by_name(
    shipped: Path, tmp_path: Path, encoder: SDGMNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pretrained.shipped_names() == [pretrained.BEST, "aerial"]
    for source in (None, "sdgmnet", pretrained.BEST):
        loaded = SDGMNet.from_pretrained(source)
        assert torch.equal(loaded.last.weight, encoder.last.weight) and not loaded.training
    assert load_encoder("aerial")[1]["which"] == "aerial"
    with pytest.raises(InputError, match=f"{pretrained.BEST}, aerial"):
        SDGMNet.from_pretrained("naval")
    # A folder with a shipped name is reached by its path only: the package's own folder is called sdgmnet, too.
    monkeypatch.chdir(tmp_path)
    SDGMNet.from_pretrained(shipped / "aerial.safetensors").save_pretrained("sdgmnet", {"which": "mine"})
    found = [load_encoder(source)[1]["which"] for source in ("sdgmnet", "./sdgmnet", Path("sdgmnet"))]
    assert found == ["best", "mine", "mine"] and load_encoder()[1]["which"] == "best"


def test_hugging_face_layout_round_trip(tmp_path: Path, encoder: SDGMNet) -> None:
    encoder.save_pretrained(tmp_path / "model", CARD)
    files = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((tmp_path / "model/config.json").read_text(encoding="utf-8"))
    assert config["encoder"] == "sdgmnet" and config["trained_on"] == ["liberty"]
    assert_same_weights(SDGMNet.from_pretrained(tmp_path / "model"), encoder)
    encoder.save_pretrained(tmp_path / "model")  # again, into the same folder
    with pytest.raises(InputError, match="is a file"):
        encoder.save_pretrained(tmp_path / "model/config.json")


def test_half_precision_becomes_single(tmp_path: Path, encoder: SDGMNet) -> None:
    halves = {name: t.half() if t.is_floating_point() else t for name, t in encoder.state_dict().items()}
    loaded, _ = load_encoder(write(tmp_path / "half.safetensors", halves))
    assert loaded.last.weight.dtype == torch.float32
    patches = torch.rand(8, 1, 32, 32)
    assert torch.allclose(loaded(patches), encoder(patches), atol=1e-2)


def test_what_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    class Mine(SDGMNet):
        pass

    with pytest.raises(InputError, match="JSON"):
        SDGMNet().save_pretrained(tmp_path / "nan", {"fpr95": float("nan")})
    with pytest.raises(InputError, match="Mine"):
        Mine().save_pretrained(tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_the_best_weights_are_the_default() -> None:
    assert shipped_names()[0] == BEST
    assert load_encoder()[1] == load_encoder(BEST)[1]


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_weights_have_a_card(name: str) -> None:
    _, card = load_encoder(name)
    assert card["loss"] == "sdgm" and "licence" in card["note"]
    if "fpr95" in card:  # a mean of weights has no score
        assert card["fpr95"]["mean"] < 0.01
    kept_out = {"bark", "bikes", "boat", "leuven", "v_churchill", "wall", "fountain", "sceaux"}
    assert card["trained_on"] and not kept_out & {*card["trained_on"], *card["scenes"]}


def test_exported_weights_are_half_as_large_and_describe_alike(tmp_path: Path, saved: Path, encoder: SDGMNet) -> None:
    out = tmp_path / "shared.safetensors"
    assert main(["export", "weights", str(saved), "-o", str(out), "--note", "my photos, CC0"]) == 0
    assert out.stat().st_size < 0.55 * saved.stat().st_size
    loaded, card = load_encoder(out)
    assert card["note"] == "my photos, CC0" and card["trained_on"] == ["liberty"]
    patches = torch.rand(64, 1, 32, 32)
    with torch.no_grad():
        assert (loaded(patches) - encoder(patches)).abs().max() < 1e-3
    assert {value.dtype for value in loaded.state_dict().values()} == {torch.float32, torch.int64}


def test_exported_weights_carry_the_given_window(tmp_path: Path, saved: Path) -> None:
    out = tmp_path / "wider.safetensors"
    assert main(["export", "weights", str(saved), "-o", str(out), "--window", "24"]) == 0
    encoder, card = load_encoder(out)
    assert encoder.window == 24 and card["window"] == 24
    assert main(["export", "weights", str(saved), "-o", str(tmp_path / "none.safetensors"), "--window", "0"]) == 2
    assert not (tmp_path / "none.safetensors").exists()


def test_exported_mean_of_two_weights(tmp_path: Path, saved: Path, encoder: SDGMNet) -> None:
    """Each parameter by its share; the data of both; scores of neither. Weights of another encoder have no mean with these."""
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        for value in other.parameters():
            value.mul_(1.5)
    save_encoder(
        other,
        tmp_path / "other.safetensors",
        {**CARD, "trained_on": ["notredame"], "scenes": None, "fpr95": {"dog": 0.1}},
    )
    out = tmp_path / "mean.safetensors"
    command = [
        "export",
        "weights",
        str(saved),
        "--average",
        str(tmp_path / "other.safetensors"),
        "-o",
        str(out),
        "--full",
    ]
    assert main([*command, "--share", "0.7"]) == 0
    mean, card = load_encoder(out)
    for (name, value), own in zip(mean.named_parameters(), encoder.parameters(), strict=True):
        assert torch.allclose(value, own * (0.3 + 0.7 * 1.5), rtol=1e-6), name
    assert card["trained_on"] == ["liberty", "notredame"] and "fpr95" not in card and card["averaged"]["share"] == 0.7
    assert main([*command, "--share", "1.5"]) == 2
    refused = tmp_path / "no.safetensors"
    start = ["export", "weights", str(saved), "-o", str(refused)]
    for wrong in (
        ["--share", "0.9"],
        ["--average", "sdgmnet-fast", "--window", "12"],  # another encoder
        ["--average", "sdgmnet-wide"],  # another window
    ):
        assert main([*start, *wrong]) == 2 and not refused.exists()
    assert main([*start, "--average", "sdgmnet-wide", "--window", "16", "--full"]) == 0


def test_exported_folder_is_in_hugging_faces_layout(tmp_path: Path, saved: Path, encoder: SDGMNet) -> None:
    assert main(["export", "weights", str(saved), "-o", str(tmp_path / "folder"), "--full"]) == 0
    assert_same_weights(SDGMNet.from_pretrained(tmp_path / "folder"), encoder)


def test_nothing_is_exported_over_itself(tmp_path: Path, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "weights", str(saved), "-o", str(saved)]) == 2
    assert main(["export", "weights", "sdgmnet-photos", "--average", str(saved), "-o", str(saved)]) == 2
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").touch()
    assert main(["export", "weights", str(saved), "-o", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr().err
    assert str(saved) in shown and str(tmp_path / "run") in shown


def test_half_precision_that_changes_descriptors_is_refused(
    tmp_path: Path, encoder: SDGMNet, capsys: pytest.CaptureFixture[str]
) -> None:
    large = copy.deepcopy(encoder)
    with torch.no_grad():
        next(value for value in large.parameters() if value.ndim == 4).mul_(1e7)  # beyond half precision
    save_encoder(large, tmp_path / "large.safetensors", CARD)
    out = tmp_path / "half.safetensors"
    assert main(["export", "weights", str(tmp_path / "large.safetensors"), "-o", str(out)]) == 2
    assert "--full" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(("name", "dropout"), [("sdgmnet", 0.1), ("l2net", 0.2), ("tfeat", 0.0)])
def test_every_encoder_comes_back(tmp_path: Path, name: str, dropout: float) -> None:
    torch.manual_seed(2)
    encoder = ENCODERS[name](dropout).eval()
    save_encoder(encoder, tmp_path / "one.safetensors", {"trained_on": ["liberty"]})
    loaded, card = load_encoder(tmp_path / "one.safetensors")
    assert type(loaded) is type(encoder) and not loaded.training
    assert (card["encoder"], card["dropout"], loaded.dropout) == (name, dropout, dropout)
    patches = torch.rand(3, 1, 32, 32)
    assert torch.equal(encoder(patches), loaded(patches))
    assert type(encoder).from_pretrained(tmp_path / "one.safetensors").training is False
    other = TFeat if name == "sdgmnet" else SDGMNet
    with pytest.raises(InputError, match=f"holds a {type(encoder).__name__}, not a {other.__name__}"):
        other.from_pretrained(tmp_path / "one.safetensors")
    loaded.save_pretrained(tmp_path / "folder")
    assert type(load_encoder(tmp_path / "folder")[0]) is type(encoder)


def test_equal_weights_make_equal_files(tmp_path: Path, encoder: SDGMNet) -> None:
    """The library orders metadata by chance: in twenty files, two orders would hardly fail to show."""
    contents = set()
    for number in range(20):
        save_encoder(encoder, tmp_path / f"{number}.safetensors", CARD)
        contents.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(contents) == 1
