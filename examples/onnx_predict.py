"""Classify images with an exported model: python onnx_predict.py model.onnx photo.jpg more.png"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
metadata = json.loads(session.get_modelmeta().custom_metadata_map["scs_supcon"])
classes, steps = metadata["classes"], metadata["preprocessing"]

for path in sys.argv[2:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    size = [steps["short_side"] * side // min(image.size) for side in image.size]
    image = image.resize(size, Image.Resampling[steps["interpolation"].upper()])
    left, top = (round((side - steps["centre_crop"]) / 2) for side in size)
    image = image.crop((left, top, left + steps["centre_crop"], top + steps["centre_crop"]))

    outputs = ["probabilities", "unknown"]
    probabilities, unknown = session.run(outputs, {"pixels": np.asarray(image)[None]})
    best = probabilities[0].argmax()
    label = "unknown" if unknown[0] else classes[best]
    print(f"{path}\t{label}\t{classes[best]}\t{probabilities[0, best]:.6f}")
