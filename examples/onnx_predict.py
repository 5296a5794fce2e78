"""Name images with an exported model: python onnx_predict.py model.onnx photo.jpg more.png"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
facts = json.loads(session.get_modelmeta().custom_metadata_map["scs_supcon"])
how = facts["prepare"]

for path in sys.argv[2:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    size = [how["short_side"] * side // min(image.size) for side in image.size]
    image = image.resize(size, Image.Resampling[how["interpolation"].upper()])
    left, top = (round((side - how["centre_crop"]) / 2) for side in size)
    image = image.crop((left, top, left + how["centre_crop"], top + how["centre_crop"]))

    names = ["probabilities", "none_of_these"]
    probabilities, refused = session.run(names, {"pixels": np.asarray(image)[None]})
    best = probabilities[0].argmax()
    answer = "none of these" if refused[0] else facts["classes"][best]
    print(f"{path}\t{answer}\t{facts['classes'][best]}\t{probabilities[0, best]:.6f}")
