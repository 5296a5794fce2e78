"""`scs encoders`: list a selection of encoders."""

import json

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import Json


@app.command()
def encoders(as_json: Json = False) -> None:
    """List a selection of encoders with size, speed, accuracy and licence.

    Speed is measured on one core of a CPU, accuracy is published (ImageNet, top 1). Any other model
    of timm can be used as well. Without --encoder, a default is chosen by the size of the images,
    their number and the device, and `scs train` prints why.

        scs encoders
        scs train ./birds --encoder balanced --out runs/birds
    """
    from scs_supcon.recipe.encoders import DATE, ENCODERS

    if as_json:
        echo(json.dumps([vars(choice) for choice in ENCODERS], indent=1))
        return
    width = max(len(choice.name) for choice in ENCODERS)
    echo(f"{'--encoder':<{width}} {'':>10} {'pixels':>6} {'M par.':>7} {'img/s':>6} {'top 1':>6}")
    for c in ENCODERS:
        alias = f"({c.alias})" if c.alias else ""
        numbers = f"{c.image_size:>6} {c.parameters:>7.1f} {c.images_per_second:>6.1f}"
        echo(f"{c.name:<{width}} {alias:>10} {numbers} {c.accuracy:>5.1f}%  {c.licence}")
    echo(f"\nAs of {DATE}: images per second on one core, accuracy on ImageNet as published.")
