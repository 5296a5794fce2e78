"""Search for a better recipe from Python, with a loss of your own.

python examples/tune_recipe.py

The same from the command line:
scs tune digits --out tunings/digits --method examples/own_code.py:Triplet \
    --over method.options.margin=0.05..0.5 --over pretrain.lr=0.03..0.3:log --trials 3
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import scs_supcon


def main() -> None:
    """Run three short trials and print them."""
    with TemporaryDirectory() as folder:
        result = scs_supcon.tune(
            "digits",
            out=f"{folder}/search",
            trials=3,
            method=f"{Path(__file__).with_name('own_code.py')}:Triplet",
            over=["method.options.margin=0.05..0.5", "pretrain.lr=0.03..0.3:log"],
            epochs=1,
            settings=["probe.epochs=2", "probe.views=1", "data.images_per_class=20"],
            device="cpu",
            workers=0,
            quiet=True,
        )
        print(result.to_pandas().drop(columns="run"))
        best = result.best
        print(f"best: trial {best.number}, {best.params}, validation accuracy {best.accuracy:.1%}")


if __name__ == "__main__":
    main()
