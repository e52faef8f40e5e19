"""Each format read a second time, with the standard library, for what loaders are compared with.

A reading is {id of a sample: (split, names of its labels, its features or None)}. Where the loader
draws the split, it is None. These readers check nothing: they see only files that a loader accepts.
"""

import ast
import csv
import gzip
import io
import json
import re
import zipfile
from pathlib import PurePath
from xml.dom import minidom

import numpy as np

from tkpr.data.nuswide_concepts import CONCEPTS, LIST_ORDER
from tkpr.data.voc import CLASSES


def text_of(path):
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")


def lines_of(path):
    return [line.strip() for line in re.split(r"\r\n|\r|\n", text_of(path)) if line.strip()]


def labelled(reading):
    return {key: value for key, value in reading.items() if value[1]}


def coco(folder):
    reading = {}
    for split, name in (("train", "train2014"), ("test", "val2014")):
        content = json.loads((folder / "annotations" / f"instances_{name}.json").read_text())
        names = {category["id"]: category["name"] for category in content["categories"]}
        for image in content["images"]:
            mine = [told for told in content["annotations"] if told["image_id"] == image["id"]]
            labels = {names[told["category_id"]] for told in mine}
            reading[PurePath(image["file_name"]).stem] = split, labels, None
    return labelled(reading)


def voc_lists(folder):
    main, reading = folder / "VOCdevkit" / "VOC2012" / "ImageSets" / "Main", {}
    for split, name in (("train", "train"), ("test", "val")):
        codes = {
            label: dict(line.split() for line in lines_of(main / f"{label}_{name}.txt"))
            for label in CLASSES
        }
        for image in lines_of(main / f"{name}.txt"):
            reading[image] = split, {label for label in CLASSES if codes[label][image] == "1"}, None
    return reading


def voc_xml(folder):
    root, reading = folder / "VOCdevkit" / "VOC2012", {}
    for split, name in (("train", "train"), ("test", "val")):
        for image in lines_of(root / "ImageSets" / "Main" / f"{name}.txt"):
            document = minidom.parse(str(root / "Annotations" / f"{image}.xml"))
            objects = _children(document.documentElement, "object")
            labels = {_text(found, "name") for found in objects if _text(found, "difficult") != "1"}
            reading[image] = split, labels, None
    return reading


def _children(element, name):
    return [child for child in element.childNodes if child.nodeName == name]


def _text(element, name):
    found = _children(element, name)
    return "".join(node.data for node in found[0].childNodes).strip() if found else ""


def nuswide_lists(folder):
    reading = {}
    for split, name in (("train", "nus_train_full.txt"), ("test", "nus_val.txt")):
        path = folder / name if (folder / name).exists() else folder / f"{name}.gz"
        for image, _, indices in (line.partition(",") for line in lines_of(path)):
            labels = {LIST_ORDER[int(float(index))] for index in indices.split()}
            reading[image] = split, labels, None
    return labelled(reading)


def nuswide_original(folder):
    reading = {}
    for split in ("Train", "Test"):
        images = lines_of(folder / "ImageList" / f"{split}Imagelist.txt")
        truth = folder / "Groundtruth" / "TrainTestLabels"
        columns = {name: lines_of(truth / f"Labels_{name}_{split}.txt") for name in CONCEPTS}
        for row, image in enumerate(images):
            labels = {name for name in CONCEPTS if columns[name][row] == "1"}
            reading[image.replace("\\", "/")] = split.lower(), labels, None
    return labelled(reading)


def rows_of(path):
    table = csv.DictReader(io.StringIO(text_of(path), newline=""), skipinitialspace=True)
    for row in table:
        if any(cell.strip() for cell in row.values()):
            yield {key.strip(): cell.strip() for key, cell in row.items()}


def nuswide_csv(folder):
    reading = {}
    for row in rows_of(folder / "nus_wid_data.csv"):
        split = {"train": "train", "val": "test"}[row["split_name"]]
        reading[row["filepath"]] = split, _names(row["label"], ","), None
    return labelled(reading)


def table(folder):
    reading = {}
    for row in rows_of(folder / "labels.csv"):
        image, split = row.pop("image"), row.pop("split", None)
        told = row.get("labels")
        ones = {name for name, cell in row.items() if cell == "1"}
        reading[image] = split, ones if told is None else _names(told, ";"), None
    return reading


def _names(cell, separator):
    found = ast.literal_eval(cell) if cell.startswith("[") else cell.split(separator)
    return {name.strip() for name in found} - {""}


def arff(folder):
    labels = [
        element.getAttribute("name")
        for element in minidom.parse(str(folder / "mini.xml")).getElementsByTagNameNS("*", "label")
    ]
    reading = {}
    for path in sorted(folder.glob("mini*.arff")):
        lines = [line for line in lines_of(path) if line[0] != "%"]
        start = next(at for at, line in enumerate(lines) if line.lower().split()[0] == "@data")
        heads = [line for line in lines[:start] if line.lower().split()[0] == "@attribute"]
        declared = [_attribute(line) for line in heads]
        split = path.stem.partition("-")[2] or None
        for number, line in enumerate(lines[start + 1 :]):
            cells = [values[0] if values else "0" for _, values in declared]
            if line[0] == "{":
                for entry in _cells(line[1:-1]):
                    at, _, value = entry.partition(" ")
                    cells[int(at)] = value.strip().strip("'")
            else:
                cells = _cells(line)
            named = {name: cell for (name, _), cell in zip(declared, cells, strict=True)}
            features = [
                number
                for (name, values), cell in zip(declared, cells, strict=True)
                if name not in labels
                for number in _numbers(values, cell)
            ]
            present = {name for name in labels if float(named[name]) == 1}
            reading[f"{path.stem}:{number}"] = split, present, np.array(features, np.float32)
    return reading


def _attribute(line):
    """The name of an attribute, and its values unless it is a number."""
    quoted = re.match(r"\S+\s+'([^']*)'\s+(.*)", line) or re.match(r"\S+\s+(\S+)\s+(.*)", line)
    kind = quoted[2].strip()
    return quoted[1], _cells(kind[1:-1]) if kind.startswith("{") else None


def _cells(text):
    (cells,) = csv.reader([text], quotechar="'", skipinitialspace=True) if text else ([],)
    return [cell.strip() for cell in cells]


def _numbers(values, cell):
    if values is None:
        return [float(cell)]
    if len(values) > 2:
        return [float(value == cell) for value in values]
    return [float(values.index(cell))]


def features(folder):
    with zipfile.ZipFile(folder / "f.npz") as archive:
        arrays = {
            name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)))
            for name in archive.namelist()
        }
    names = arrays["class_names"].tolist()
    reading = {}
    for row, key in enumerate(arrays["ids"].tolist()):
        split = "train" if arrays["split"][row] == "train" else "test"
        labels = {
            name for name, value in zip(names, arrays["labels"][row], strict=True) if value == 1
        }
        reading[str(key)] = split, labels, arrays["features"][row].astype(np.float32)
    return reading
