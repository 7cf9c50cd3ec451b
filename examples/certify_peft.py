"""Certificates for LoRA adapters of peft: next-token predictions of a mixture of adapters, on a tiny random model."""

# %% A tiny language model with three LoRA adapters. Replace it by your own model and adapters.
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import redx

torch.manual_seed(0)
config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
names = ["law", "code", "news"]
lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)  # random, as nothing is trained
model = get_peft_model(LlamaForCausalLM(config), lora, adapter_name=names[0])
assert isinstance(model, PeftModel)
for name in names[1:]:
    model.add_adapter(name, lora)
model.eval()

# %% Twelve texts of each domain. Every row of a mixed batch uses one adapter, or none.
tokens = torch.randint(50, (36, 16))
domains = torch.arange(3).repeat_interleave(12)


def next_token_logits(adapter: str) -> torch.Tensor:
    """Return the logits of all positions but the last, (rows, 15, C)."""
    with torch.no_grad():
        return model(input_ids=tokens, adapter_names=[adapter] * len(tokens)).logits[:, :-1]


base = next_token_logits("__base__")
residuals = torch.stack([next_token_logits(name) - base for name in names], 2)  # (rows, 15, K, C)

# %% The router: here one that knows the domain of a text. One row for every token; texts stay together in a file.
gates = 4 * torch.nn.functional.one_hot(domains, 3).float()
positions = base.shape[1]
arrays = {
    "base": base,
    "residuals": residuals,
    "gates": gates[:, None].expand(-1, positions, -1),
    "labels": tokens[:, 1:],
    "domains": domains[:, None].expand(-1, positions),
}


def write(path: str, texts: torch.Tensor) -> None:
    """Write the rows of some texts as a parts file."""
    save_file({name: values[texts].flatten(0, 1).contiguous() for name, values in arrays.items()}, path)


odd = torch.arange(len(tokens)) % 2 == 1
write("test.safetensors", odd)
write("held.safetensors", ~odd)  # calibration: other texts, that nothing was trained or chosen on

# %% As `redx certify --parts test.safetensors --risk 0.02 --calibration held.safetensors`
report = redx.certify_parts("test.safetensors", risk=0.02, calibration="held.safetensors")
print(f"{len(report.radius)} predictions, {report.figures['breakable']:.3f} of them can be changed by some router")
print("a greedy text keeps its tokens up to ε =", float(report.radius.reshape(-1, positions).amin(1).max()))
print("harm with the cut-off:", report.figures["risk"]["after"]["harm"])
