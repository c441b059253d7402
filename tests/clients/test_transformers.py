"""transformers: the Trainer, generation, pipelines, and models that are loaded to, or divided among, devices."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Trainer,
    TrainingArguments,
)

if TYPE_CHECKING:
    from tests.clients.conftest import Launch
    from tests.conftest import RunScript

VOCABULARY = 64


SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def llama(**settings: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, **settings))


def mixtral() -> Any:
    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=4))


def gpt2(dropout: float) -> Any:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=32,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return GPT2LMHeadModel(config)


def text(rows: int = 48) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(VOCABULARY, (rows, 16), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def train(folder: Path, model: Any, resume: bool = False, **arguments: Any) -> list[float]:
    """The loss of each step."""
    settings: dict[str, Any] = {
        "max_steps": 6,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    } | arguments
    trainer = Trainer(model, TrainingArguments(str(folder), **settings), train_dataset=text())
    trainer.train(resume_from_checkpoint=resume)
    assert next(trainer.model.parameters()).device.type == trainer.args.device.type
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_trainer_is_on_the_device(tmp_path: Path, device: torch.device) -> None:
    assert TrainingArguments(str(tmp_path)).device.type == device.type
    assert TrainingArguments(str(tmp_path), use_cpu=True).device.type == "cpu"


def test_the_trainers_losses_are_those_of_the_cpu(tmp_path: Path) -> None:
    losses = train(tmp_path, llama())
    assert losses == pytest.approx(train(tmp_path, llama(), use_cpu=True), rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_trainer_trains_in_mixed_precision(tmp_path: Path, precision: str) -> None:
    losses = train(tmp_path, llama(), **{precision: True})
    assert losses == pytest.approx(train(tmp_path, llama(), use_cpu=True), rel=0.02)


def test_the_trainer_checkpoints_activations_and_evaluates(tmp_path: Path) -> None:
    settings = TrainingArguments(
        str(tmp_path), max_steps=2, gradient_checkpointing=True, report_to=[], save_strategy="no", disable_tqdm=True
    )
    trainer = Trainer(llama(), settings, train_dataset=text(), eval_dataset=text(8))
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.predict(text(8)).predictions.shape == (8, 16, VOCABULARY)


def test_the_trainer_goes_on_from_a_checkpoint_with_the_same_random_numbers(tmp_path: Path) -> None:
    losses = train(tmp_path, gpt2(dropout=0.5), save_strategy="steps", save_steps=3)
    transformers.set_seed(1)
    again = train(tmp_path, gpt2(dropout=0.5), resume=str(tmp_path / "checkpoint-3"))  # type: ignore[arg-type]
    assert again[-3:] == losses[-3:]


def test_the_trainer_compiles(tmp_path: Path) -> None:
    losses = train(tmp_path, llama(), torch_compile=True, max_steps=3)
    assert losses == pytest.approx(train(tmp_path, llama(), use_cpu=True, max_steps=3), rel=1e-3)


@pytest.fixture
def prompt() -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(2))


def generate(model: Any, prompt: torch.Tensor, **settings: Any) -> list[list[int]]:
    mask = torch.ones_like(prompt)
    tokens: list[list[int]] = model.generate(
        prompt.to(model.device), attention_mask=mask.to(model.device), max_new_tokens=12, do_sample=False, **settings
    ).tolist()
    return tokens


def test_tokens_are_those_of_the_cpu(prompt: torch.Tensor, device: torch.device) -> None:
    model = llama().eval()
    expected = generate(model, prompt)
    model = model.to(device)
    assert generate(model, prompt) == expected
    assert generate(model, prompt, cache_implementation="static") == expected
    assert generate(model, prompt, num_beams=3) == generate(llama().eval(), prompt, num_beams=3)


def test_experts_are_those_of_the_cpu(prompt: torch.Tensor, device: torch.device) -> None:
    def losses(model: Any) -> list[float]:
        tokens = prompt.to(model.device)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        steps = []
        for _ in range(3):
            loss = model(tokens, labels=tokens, output_router_logits=True).loss
            loss.backward()
            optimizer.step()
            steps.append(loss.item())
        return steps

    assert generate(mixtral().eval().to(device), prompt) == generate(mixtral().eval(), prompt)
    assert losses(mixtral().to(device)) == pytest.approx(losses(mixtral()), rel=1e-4)


def test_generation_is_compiled_into_graphs(prompt: torch.Tensor, device: torch.device) -> None:
    model = llama().eval()
    expected = generate(model, prompt)
    model = model.to(device)
    model.forward = torch.compile(model.forward, mode="reduce-overhead")
    assert generate(model, prompt, cache_implementation="static") == expected


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
def test_every_attention_is_that_of_the_cpu(attention: str, prompt: torch.Tensor, device: torch.device) -> None:
    with torch.no_grad():
        expected = llama().eval()(prompt).logits
        logits = llama(attn_implementation=attention).eval().to(device)(prompt.to(device)).logits
    torch.testing.assert_close(logits.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["auto", "cuda", None], ids=["auto", "device", "dictionary"])
def test_a_model_is_loaded_to_the_device(
    where: str | None, tmp_path: Path, prompt: torch.Tensor, device: torch.device
) -> None:
    model = llama().eval()
    model.save_pretrained(tmp_path)
    places: Any = {"auto": "auto", "cuda": device.type, None: {"": 0}}[where]
    loaded = LlamaForCausalLM.from_pretrained(tmp_path, device_map=places).eval()
    assert {parameter.device for parameter in loaded.parameters()} == {device}
    assert generate(loaded, prompt) == generate(model, prompt)


def test_the_library_may_be_imported_before_torch(run_script: RunScript, device: torch.device) -> None:
    script = f"""
    from transformers import TrainingArguments, Trainer
    from accelerate import Accelerator
    import torch
    assert TrainingArguments(output_dir="out", report_to=[]).device.type == "{device.type}"
    assert Accelerator(mixed_precision="fp16").scaler is not None
    """
    run_script(script).output()


def test_a_model_is_divided_among_the_devices(tmp_path: Path, run_script: RunScript) -> None:
    model = llama().eval()
    model.save_pretrained(tmp_path)
    script = f"""
        import torch
        from transformers import LlamaForCausalLM
        first, second = ("embed_tokens", "rotary_emb", "layers.0"), ("layers.1", "norm")
        places = {{f"model.{{name}}": index for index, names in enumerate((first, second)) for name in names}}
        places |= {{"lm_head": 1}}
        model = LlamaForCausalLM.from_pretrained({str(tmp_path)!r}, device_map=places).eval()
        print(*sorted({{parameter.device.index for parameter in model.parameters()}}))
        with torch.no_grad():
            print(*model(torch.ones(1, 4, dtype=torch.long)).logits[0, -1, :4].tolist())
    """
    devices, logits = run_script(script, TORCH_MTIA_DEVICES="2").output().splitlines()
    assert devices == "0 1"
    with torch.no_grad():
        expected = model(torch.ones(1, 4, dtype=torch.long)).logits[0, -1, :4]
    torch.testing.assert_close(torch.tensor([float(number) for number in logits.split()]), expected)


def test_a_pipeline_is_on_the_device(device: torch.device) -> None:
    from transformers.pipelines import TextGenerationPipeline

    pipeline = TextGenerationPipeline(llama().eval(), tokenizer=tokenizer())
    assert pipeline.device == device
    (result,) = pipeline("w1 w2 w3", max_new_tokens=4, do_sample=False)
    assert result["generated_text"].startswith("w1 w2 w3")
    assert TextGenerationPipeline(llama(), tokenizer=tokenizer(), device="cpu").device.type == "cpu"


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0")


def test_the_trainer_trains_in_several_processes(launch: Launch, tmp_path: Path) -> None:
    script = f"""
        import json
        from pathlib import Path
        import torch
        from tests.clients.test_transformers import llama, train
        losses = train(Path({str(tmp_path)!r}), llama(), per_device_train_batch_size=4)
        print(json.dumps([torch.accelerator.current_device_index(), losses]))
        torch.distributed.destroy_process_group()
    """
    index, losses = json.loads(launch(script, PYTHONPATH=str(Path.cwd())).splitlines()[-1])
    assert index == 0
    assert losses == pytest.approx(train(tmp_path, llama(), use_cpu=True), rel=1e-4)


def test_a_model_is_divided_by_its_tensors(launch: Launch, tmp_path: Path) -> None:
    model = llama().eval()
    model.save_pretrained(tmp_path)
    script = f"""
        import json
        import torch
        from transformers import LlamaForCausalLM
        model = LlamaForCausalLM.from_pretrained({str(tmp_path)!r}, tp_plan="auto").eval()
        weight = model.model.layers[0].mlp.up_proj.weight
        with torch.no_grad():
            logits = model(torch.ones(1, 4, dtype=torch.long, device=model.device)).logits[0, -1, :4]
        part = getattr(weight, "to_local", lambda: weight)()
        print(json.dumps([model.device.type, list(part.shape), logits.tolist()]))
        torch.distributed.destroy_process_group()
    """
    output = launch(textwrap.dedent(script), PYTHONPATH=str(Path.cwd()))
    kind, shape, logits = json.loads(output.splitlines()[-1])
    assert kind != "cpu"
    assert shape == [32, 64]
    with torch.no_grad():
        expected = model(torch.ones(1, 4, dtype=torch.long)).logits[0, -1, :4]
    torch.testing.assert_close(torch.tensor(logits), expected)
