"""What a process was doing when a request for memory failed, read off the functions of its traceback.

Sources: torch 2.0 to 2.14, transformers, DeepSpeed, Megatron-LM, Lightning, safetensors. A phase is what the program
meant to do; the user's own functions have no names that could be known, so they never decide.
"""

from __future__ import annotations

# Purposes come before the passes that they happen in, and passes before the plain call of a module.
_PURPOSE, _PASS, _LOOP, _CALL = 0, 1, 2, 3

_OPTIM = "torch/optim/"
_SERIAL = "torch/serialization.py"
_MODULE = "torch/nn/modules/module.py"
_C10D = "torch/distributed/distributed_c10d.py"
_TRAINER = "transformers/trainer"

# phase, tier, part of the file's path (empty: any), functions
_TABLE: tuple[tuple[str, int, str, tuple[str, ...]], ...] = (
    # The state of an optimizer is made in its first step, by these alone.
    ("optimizer_state", _PURPOSE, _OPTIM, ("_init_group",)),
    ("optimizer_state", _PURPOSE, "deepspeed/", ("initialize_optimizer_states",)),
    ("optimizer_state", _PURPOSE, "megatron/", ("init_state_fn",)),
    ("optimizer_state", _PURPOSE, "transformer_engine/", ("initialize_state", "_initialize_state")),
    ("optimizer_state", _PURPOSE, "bitsandbytes/", ("init_state", "get_state_buffer")),
    ("optimizer_load", _PURPOSE, _OPTIM, ("load_state_dict", "_process_value_according_to_param_policy")),
    ("unsharded_gradients", _PURPOSE, "torch/distributed/",
     ("to_accumulated_grad_if_needed", "accumulate_unsharded_grad_if_needed", "_use_unsharded_grad_views")),
    ("unshard", _PURPOSE, "torch/distributed/",
     ("_unshard", "unshard", "foreach_all_gather", "_all_gather_flat_param", "_alloc_padded_unsharded_flat_param",
      "all_gather_copy_in")),
    ("evaluation_concat", _PURPOSE, "transformers/", ("nested_concat", "torch_pad_and_concatenate")),
    ("attention_unfused", _PURPOSE, "", ("eager_attention_forward", "_scaled_dot_product_attention_math")),
    ("attention_unfused", _PURPOSE, "transformers/", ("_attn",)),
    ("attention", _PURPOSE, "transformers/", ("sdpa_attention_forward",)),
    ("state_dict_gather", _PURPOSE, "torch/distributed/",
     ("_full_post_state_dict_hook", "full_tensor", "_gather_state_dict", "_iterate_state_dict", "get_model_state_dict",
      "get_state_dict", "_unflatten_optim_state", "full_optim_state_dict")),
    ("checkpoint_save", _PURPOSE, _SERIAL, ("save", "_save", "_legacy_save")),
    ("checkpoint_load", _PURPOSE, _SERIAL,
     ("load", "_load", "_legacy_load", "persistent_load", "load_tensor", "restore_location", "default_restore_location",
      "_deserialize")),
    ("checkpoint_load", _PURPOSE, "safetensors/torch.py", ("load_file", "load_model")),
    ("checkpoint_load", _PURPOSE, "torch/distributed/checkpoint/", ("load", "load_state_dict", "_load_state_dict")),
    ("checkpoint_load", _PURPOSE, _MODULE, ("load_state_dict",)),
    ("checkpoint_load", _PURPOSE, "transformers/modeling_utils.py",
     ("from_pretrained", "_load_pretrained_model", "load_shard_file", "load_state_dict",
      "_load_state_dict_into_meta_model")),
    ("checkpoint_load", _PURPOSE, "deepspeed/", ("load_checkpoint", "load_module_state_dict")),
    ("graph_capture", _PURPOSE, "torch/cuda/graphs.py", ("__enter__", "capture_begin", "make_graphed_callables")),
    ("communicator", _PURPOSE, _C10D,
     ("init_process_group", "new_group", "_new_group_with_tag", "_new_process_group_helper", "split_group", "barrier")),
    ("communicator", _PURPOSE, "torch/distributed/device_mesh.py", ("init_device_mesh",)),
    ("pinning", _PURPOSE, "torch/utils/data/_utils/pin_memory.py", ("_pin_memory_loop", "pin_memory", "do_one_step")),
    ("model_placement", _PASS, _MODULE, ("_apply", "to", "cuda", "convert", "to_empty")),
    ("optimizer_step", _PASS, _OPTIM, ("step",)),
    ("optimizer_step", _PASS, "deepspeed/runtime/", ("step", "_take_model_step", "_optimizer_step")),
    ("optimizer_step", _PASS, "megatron/core/optimizer", ("step", "step_with_ready_grads")),
    ("backward", _PASS, "torch/_tensor.py", ("backward",)),
    ("backward", _PASS, "torch/autograd/", ("backward", "_engine_run_backward", "grad")),
    ("backward", _PASS, "deepspeed/runtime/", ("backward",)),
    ("recompute", _PASS, "torch/utils/checkpoint.py", ("backward", "unpack_hook", "recompute_fn")),
    ("generation", _LOOP, "transformers/generation/", ("generate",)),
    ("generation", _LOOP, "vllm/", ("generate", "execute_model")),
    ("evaluation", _LOOP, _TRAINER, ("evaluate", "predict", "evaluation_loop", "prediction_loop")),
    ("evaluation", _LOOP, "lightning/pytorch/", ("_evaluation_step", "validation_step", "test_step")),
    ("loss", _CALL, "torch/nn/functional.py", ("cross_entropy", "nll_loss", "log_softmax")),
    ("loss", _CALL, "transformers/loss/", ("ForCausalLMLoss", "fixed_cross_entropy")),
    ("forward", _CALL, _MODULE, ("_call_impl", "_wrapped_call_impl")),
)  # fmt: skip
# One function per optimizer: _multi_tensor_adamw, _single_tensor_sgd, ...
_OPTIMIZERS = ("_multi_tensor_", "_single_tensor_", "_fused_")

_BY_FUNCTION: dict[str, list[tuple[str, int, str]]] = {}
for _phase, _tier, _file, _functions in _TABLE:
    for _function in _functions:
        _BY_FUNCTION.setdefault(_function, []).append((_file, _tier, _phase))


def phase_of(file: str, function: str) -> tuple[int, str] | None:
    """Rank (a lower one decides) and name of the phase that a frame shows; None where it shows none."""
    for part, tier, phase in _BY_FUNCTION.get(function, ()):
        if part in file:
            return tier, phase
    if function.startswith(_OPTIMIZERS) and _OPTIM in file:
        return _PASS, "optimizer_step"
    return None
