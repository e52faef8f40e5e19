"""A network cut in two: the first part frozen, its outputs stored once; the rest is trained."""

import copy
import difflib
import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class CutNetwork(nn.Module):
    """A timm network whose layers up to ``cut`` are frozen.

    Images go through both parts, so that it is one network; outputs of the frozen part, which can
    be stored, go through the rest alone. Batch norm is folded into the convolutions before it or,
    where there is none, stays in evaluation mode: statistics of small batches do harm here.

    Args:
        network: any network of timm, with its weights.
        cut: the name of the last frozen module, such as ``blocks.5`` or ``layer3``.
        image_size: the side of the images in pixels.

    Attributes:
        map_shape: of what the frozen part gives for one image.
        digest: 16 hexadecimal digits that change with the weights of the frozen part.

    >>> import timm
    >>> model = CutNetwork(timm.create_model("resnet18", num_classes=5), "layer3", image_size=64)
    >>> model.map_shape
    torch.Size([256, 4, 4])
    >>> model(torch.zeros(2, 3, 64, 64)).shape, model(torch.zeros(2, 256, 4, 4)).shape
    (torch.Size([2, 5]), torch.Size([2, 5]))
    """

    def __init__(self, network: nn.Module, cut: str, *, image_size: int) -> None:
        super().__init__()
        network.eval()
        frozen, tail = split(network, cut)
        self.digest = digest(frozen)
        images = torch.rand(1, 3, image_size, image_size)
        with torch.no_grad():
            try:
                maps = features(frozen, images)
                whole, parts = network(images), tail(maps)
            except (RuntimeError, ValueError, TypeError, AttributeError, AssertionError) as error:
                raise ValueError(f"the network cannot be cut at {cut}: {error}") from error
            scale = whole.abs().max().clamp(min=1e-6)
            if whole.shape != parts.shape or not (whole - parts).abs().max() <= 1e-3 * scale:
                raise ValueError(
                    f"the network cannot be cut at {cut}: the parts before and after it do not "
                    f"make up the whole; {suggestions(network, cut)}"
                )
            fold_batch_norm(frozen, images, call=features)
            fold_batch_norm(tail, maps)
        self.frozen, self.tail, self.map_shape = frozen.requires_grad_(False), tail, maps.shape[1:]
        self.train()

    def train(self, mode: bool = True) -> "CutNetwork":
        """Leave the frozen part, and batch norm that could not be folded, in evaluation mode."""
        super().train(mode)
        self.frozen.eval()
        for layer in self.tail.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.eval()
        return self

    def maps(self, images: Tensor) -> Tensor:
        """Return what the frozen part makes of images ``[B, 3, S, S]``."""
        with torch.no_grad():
            return features(self.frozen, images)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's outputs of images, or of maps."""
        return self.tail(inputs if inputs.shape[1:] == self.map_shape else self.maps(inputs))

    def __getattr__(self, name: str) -> Any:
        """Answer for the tail where the question is one to a network of timm."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("frozen", "tail"):
                raise
            return getattr(self.tail, name)


def features(network: Any, images: Tensor) -> Tensor:
    """Return what a network gives before it pools."""
    return network.forward_features(images)


def split(network: nn.Module, cut: str) -> tuple[nn.Module, nn.Module]:
    """Return copies of a network in which what follows ``cut``, or comes before it, does nothing.

    >>> frozen, tail = split(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), "1")
    >>> tail
    Sequential(
      (0): Identity()
      (1): Identity()
      (2): Linear(in_features=3, out_features=2, bias=True)
    )
    """
    if not cut or cut not in dict(network.named_modules()):
        raise ValueError(f"the network has no layer {cut}; {suggestions(network, cut)}")
    frozen, tail = copy.deepcopy(network), copy.deepcopy(network)
    path = cut.split(".")
    for depth, name in enumerate(path):
        parent = ".".join(path[:depth])
        children = list(dict(network.get_submodule(parent).named_children()))
        place = children.index(name)
        for later in children[place + 1 :]:
            setattr(frozen.get_submodule(parent), later, nn.Identity())
        for earlier in children[:place]:
            setattr(tail.get_submodule(parent), earlier, nn.Identity())
        own: Any = tail.get_submodule(parent)
        for parameter in list(own._parameters):  # of a transformer: its tokens come with the maps
            setattr(own, parameter, None)
        if hasattr(own, "_pos_embed"):
            own._pos_embed = nn.Identity()
    setattr(tail.get_submodule(".".join(path[:-1])), path[-1], nn.Identity())
    return frozen, tail


def cuts(network: nn.Module) -> list[str]:
    """List where a network can be cut: at the members of its sequences of layers, in order.

    >>> cuts(nn.ModuleDict({"stem": nn.ReLU(), "blocks": nn.Sequential(nn.ReLU(), nn.ReLU())}))
    ['blocks.0', 'blocks.1']
    """
    return [
        f"{name}.{member}"
        for name, layers in network.named_children()
        if isinstance(layers, nn.Sequential)
        for member, _ in layers.named_children()
    ]


def suggestions(network: nn.Module, cut: str) -> str:
    """Name cuts most like ``cut``."""
    possible = cuts(network)
    near = difflib.get_close_matches(cut, possible, n=4, cutoff=0.3) or possible
    return f"model.cut can be {', '.join(near)}"


def digest(network: nn.Module) -> str:
    """Return 16 digits of the SHA-256 of a network's weights and their names."""
    found = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def fold_batch_norm(network: nn.Module, inputs: Tensor, *, call: Any = None) -> None:
    """Fold each batch norm into the convolution whose output it takes, in place.

    Args:
        network: in evaluation mode.
        inputs: a batch that shows which layer follows which.
        call: how the network is called; None: as a function.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    >>> fold_batch_norm(network, torch.zeros(1, 3, 2, 2))
    >>> network
    Sequential(
      (0): Conv2d(3, 4, kernel_size=(1, 1), stride=(1, 1))
      (1): Identity()
    )
    """
    convolved: dict[int, tuple[str, Tensor]] = {}  # the tensors are kept, so that no id is reused
    pairs: list[tuple[str, str]] = []
    hooks = []
    for name, layer in network.named_modules():
        if type(layer).__name__.startswith("Conv2d"):

            def remember(module: Any, args: Any, output: Tensor, name: str = name) -> None:
                convolved[id(output)] = (name, output)

            hooks.append(layer.register_forward_hook(remember))
        if isinstance(layer, nn.BatchNorm2d):

            def pair(module: Any, args: Any, name: str = name) -> None:
                if id(args[0]) in convolved:
                    pairs.append((convolved[id(args[0])][0], name))

            hooks.append(layer.register_forward_pre_hook(pair))
    (call or type(network).__call__)(network, inputs)
    for hook in hooks:
        hook.remove()
    for conv, norm in pairs:
        before: Any = network.get_submodule(conv)
        after: Any = network.get_submodule(norm)
        network.set_submodule(conv, fuse_conv_bn_eval(before, after).requires_grad_())
        network.set_submodule(norm, getattr(after, "act", nn.Identity()))
