"""Classify images with an exported model: python onnx_predict.py model.onnx photo.jpg more.png

Needs numpy, pillow and onnxruntime, and of this package only the functions that open and crop
images, which do not import torch: pip install --no-deps scs-supcon
"""

import json
import os
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import: otherwise it contacts its maker

import numpy as np
import onnxruntime

from scs_supcon.data.crop import CentreCrop
from scs_supcon.data.image_io import open_image

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
metadata = json.loads(session.get_modelmeta().custom_metadata_map["scs_supcon"])
classes, steps = metadata["classes"], metadata["preprocessing"]
crop = CentreCrop(steps["short_side"], steps["centre_crop"], steps["interpolation"])

for path in sys.argv[2:]:
    pixels = np.asarray(crop(open_image(path)))[None]
    probabilities, unknown = session.run(["probabilities", "unknown"], {"pixels": pixels})
    best = probabilities[0].argmax()
    label = "unknown" if unknown[0] else classes[best]
    print(f"{path}\t{label}\t{classes[best]}\t{probabilities[0, best]:.6f}")
