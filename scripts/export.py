"""Export a trained model, and check that the exported one gives the same outputs.

python scripts/export.py runs/voc2012/tkpr_a2/default --format onnx --output model.onnx
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkpr.runs.script import Parser, output_file, script

if TYPE_CHECKING:
    from torch import Tensor

    from tkpr.runs.saved_model import TrainedModel


def main() -> None:
    """Read the command line, export, compare."""
    parser = Parser(__doc__)
    parser.add_argument(
        "run", type=Path, help="the folder of a finished run, or its model.safetensors"
    )
    parser.add_argument("--format", choices=["safetensors", "torch", "onnx"], required=True)
    parser.add_argument("--output", type=output_file, required=True)
    arguments = parser.parse_args()

    import torch

    from tkpr.models.heads import is_chunked
    from tkpr.runs.saved_model import load_model

    trained = load_model(arguments.run)
    if is_chunked(trained.model):
        raise ValueError(
            "a model with a chunked head is too large to export: share its model.safetensors"
        )
    torch.manual_seed(0)
    example = torch.rand(2, *trained.input_shape)
    export = {"safetensors": to_safetensors, "torch": to_torch, "onnx": to_onnx}[arguments.format]
    with torch.inference_mode():
        expected = trained.model(example)
    outputs = export(trained, example, arguments.output)
    difference = (outputs - expected).abs().max().item()
    scale = expected.abs().max().item()
    if not difference <= 1e-4 * max(scale, 1):
        arguments.output.unlink()
        raise ValueError(
            f"the exported model differs by {difference:.2g} from outputs of up to {scale:.2g}: "
            f"nothing was kept"
        )
    print(f"{arguments.output}: outputs differ by at most {difference:.1e}")


def to_safetensors(trained: "TrainedModel", example: "Tensor", output: Path) -> "Tensor":
    """Weights, class names and settings in one file, which evaluate.py and predict.py read."""
    import torch

    from tkpr.runs.saved_model import load_model, save_model

    save_model(output, trained)
    with torch.inference_mode():
        return load_model(output).model(example)


def channels(value: Any) -> list[float]:
    """Three numbers, one per channel, of a list or of one number for all."""
    return [float(value)] * 3 if isinstance(value, int | float) else [float(x) for x in value]


def about(trained: "TrainedModel") -> dict[str, str]:
    """What a program that runs the model must know besides it, as JSON texts."""
    import json

    transform = trained.cfg.transform
    preprocessing = None
    if len(trained.input_shape) == 3:
        preprocessing = {
            "size": trained.input_shape[-1],
            "mean": channels(transform.mean),
            "std": channels(transform.std),
            "interpolation": transform.interpolation,
            "colors": "RGB in [0, 1], squashed to a square",
        }
    return {
        "class_names": json.dumps(trained.class_names),
        "thresholds": json.dumps(trained.thresholds),
        "temperature": json.dumps(trained.temperature),
        "preprocessing": json.dumps(preprocessing),
    }


def to_torch(trained: "TrainedModel", example: "Tensor", output: Path) -> "Tensor":
    """A torch.export program with a free batch size; names and preprocessing as extra files."""
    import torch

    batch = torch.export.Dim("batch", min=1, max=65536)
    program = torch.export.export(trained.model, (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, output, extra_files=about(trained))
    with torch.inference_mode():
        return torch.export.load(output).module()(example)


def to_onnx(trained: "TrainedModel", example: "Tensor", output: Path) -> "Tensor":
    """An ONNX file with a free batch size; names and preprocessing in its metadata."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ValueError("ONNX needs more packages: pip install -e '.[export]'") from error
    import torch

    program: Any = torch.onnx.export(
        trained.model,
        (example,),
        input_names=["input"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    program.model.metadata_props.update(about(trained))
    program.save(output, external_data=False)
    session = onnxruntime.InferenceSession(str(output), providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"input": example.numpy()})
    return torch.from_numpy(outputs)


if __name__ == "__main__":
    script(main)
