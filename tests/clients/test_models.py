"""Libraries of layers and models compute on the device what they compute on the CPU."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import kornia
import pytest
import torch
import torch_geometric
import torch_geometric.nn
import torch_geometric.utils
from einops import einsum, rearrange, reduce
from einops.layers.torch import Rearrange
from torch import nn


def compare(compute: Callable[[torch.device], Any], device: torch.device, tolerance: float = 1e-4) -> None:
    result = compute(device)
    assert result.device == device
    torch.testing.assert_close(result.cpu(), compute(torch.device("cpu")), rtol=tolerance, atol=tolerance)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def test_einops(device: torch.device) -> None:
    compare(lambda where: rearrange(numbers(2, 3, 4).to(where), "a b c -> (a c) b"), device)
    compare(lambda where: reduce(numbers(2, 3, 4).to(where), "a b c -> b", "max"), device)
    compare(lambda where: einsum(numbers(2, 3).to(where), numbers(4, 3).to(where), "a b, c b -> a c"), device)
    compare(lambda where: torch.compile(Rearrange("a b c -> a (b c)"))(numbers(2, 3, 4).to(where)), device)


def unet() -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(32, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )


def test_diffusers(device: torch.device) -> None:
    compare(lambda where: unet().to(where)(numbers(2, 1, 16, 16).to(where), 3).sample.detach(), device, 1e-3)
    schedule = diffusers.DDIMScheduler(num_train_timesteps=10)
    pictures = []
    for where in (device.type, "cpu"):
        pipeline = diffusers.DDIMPipeline(unet(), schedule).to(where)
        pipeline.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(2)
        pictures.append(pipeline(num_inference_steps=3, generator=generator, output_type="np").images)
    assert abs(pictures[0] - pictures[1]).max() < 1e-3


def test_diffusers_offloads_from_the_device(device: torch.device) -> None:
    pipeline = diffusers.DDIMPipeline(unet(), diffusers.DDIMScheduler(num_train_timesteps=10))
    pipeline.set_progress_bar_config(disable=True)
    pipeline.enable_sequential_cpu_offload()
    assert pipeline._execution_device.type == device.type
    assert pipeline(num_inference_steps=2, output_type="np").images.shape == (1, 16, 16, 1)


@pytest.mark.parametrize(
    "filter_",
    [
        lambda x: kornia.filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0)),
        kornia.filters.sobel,
        kornia.color.rgb_to_hsv,
        lambda x: kornia.geometry.rotate(x, torch.tensor([30.0, 20.0], device=x.device)),
        lambda x: kornia.geometry.resize(x, (8, 8)),
        kornia.augmentation.RandomHorizontalFlip(p=1.0),
        lambda x: kornia.morphology.dilation(x, torch.ones(3, 3).to(x.device)),
    ],
    ids=["blur", "sobel", "hsv", "rotate", "resize", "flip", "dilation"],
)
def test_kornia(filter_: Callable[[torch.Tensor], Any], device: torch.device) -> None:
    compare(lambda where: filter_(numbers(2, 3, 16, 16).sigmoid().to(where)), device)


def test_kornia_augments(device: torch.device) -> None:
    pictures = numbers(2, 3, 16, 16).sigmoid().to(device)
    steps = (kornia.augmentation.RandomAffine(30.0), kornia.augmentation.ColorJiggle(0.1, 0.1, 0.1, 0.1))
    assert kornia.augmentation.AugmentationSequential(*steps)(pictures).device == device


@pytest.mark.parametrize("how", ["sum", "mean", "max", "min", "mul"])
def test_geometric_scatters(how: str, device: torch.device) -> None:
    index = torch.tensor([0, 0, 1, 2, 2, 2])
    compare(lambda where: torch_geometric.utils.scatter(numbers(6, 4).to(where), index.to(where), reduce=how), device)


def test_geometric_convolves(device: torch.device) -> None:
    edges = torch.randint(6, (2, 20), generator=torch.Generator().manual_seed(3))

    def compute(where: torch.device) -> torch.Tensor:
        torch.manual_seed(0)
        layers = torch_geometric.nn.GCNConv(4, 8).to(where), torch_geometric.nn.GATConv(8, 4).to(where)
        inputs = numbers(6, 4).to(where).requires_grad_()
        layers[1](layers[0](inputs, edges.to(where)), edges.to(where)).square().sum().backward()
        assert inputs.grad is not None
        return inputs.grad

    compare(compute, device)


def test_geometric_chooses_the_device(device: torch.device) -> None:
    assert torch_geometric.device("auto").type == device.type
    assert torch_geometric.device("cpu").type == "cpu"


def test_sentences_are_encoded_on_the_device(tmp_path: Path, device: torch.device) -> None:
    import transformers
    from sentence_transformers import SentenceTransformer, util
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(64)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", pad_token="w0", model_max_length=16
    )
    tokenizer.save_pretrained(tmp_path)
    settings: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    transformers.BertModel(transformers.BertConfig(vocab_size=64, **settings)).save_pretrained(tmp_path)

    sentences = ["w1 w2", "w3 w4 w5"]
    model = SentenceTransformer(str(tmp_path))
    encoded = model.encode(sentences, convert_to_tensor=True)
    assert (model.device.type, encoded.device) == (device.type, device)
    expected = SentenceTransformer(str(tmp_path), device="cpu").encode(sentences, convert_to_tensor=True)
    torch.testing.assert_close(encoded.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert util.cos_sim(encoded, encoded).device == device


LAYERS = """
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * 2, i < n)

class Double(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
        return out
"""


def test_kernels_replace_layers(tmp_path: Path, device: torch.device) -> None:
    kernels: Any = importlib.import_module("kernels")
    package = tmp_path / "build" / "torch-universal"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import layers")
    (package / "layers.py").write_text(LAYERS)
    about = {"id": "_doubling_1", "name": "doubling", "version": 1, "license": "MIT", "python-depends": []}
    (package / "metadata.json").write_text(json.dumps(about | {"backend": {"type": "cpu"}}))

    @kernels.use_kernel_forward_from_hub("Double")
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    repository = kernels.LocalLayerRepository(tmp_path, layer_name="Double")
    with kernels.use_kernel_mapping({"Double": {device.type: repository}}):
        layer = kernels.kernelize(Double(), mode=kernels.Mode.INFERENCE, device=device.type)
    assert layer(torch.ones(300, device=device)).sum().item() == 600
