"""Read the files that the options of a run name, before any image is read."""

from scs_supcon.errors import UserError
from scs_supcon.inference.package import WEIGHTS, read_package
from scs_supcon.io.hashing import file_sha256
from scs_supcon.recipe import paper
from scs_supcon.recipe.resolve import InputFiles, TrainOptions, check_options
from scs_supcon.recipe.toml import make_recipe, merge, read_recipe


def read_input_files(options: TrainOptions) -> InputFiles:
    """Return the contents of the files, and check all options that do not depend on the data.

    Raises:
        UserError: a file is missing or invalid, or an option is.
    """
    recipe, initial_recipe, initial_sha256 = {}, None, None
    named = "" if options.recipe is None or options.recipe.exists() else str(options.recipe)
    named = named if named == paper.NAME else ""
    if options.recipe is not None and not named:
        recipe = read_recipe(options.recipe)
        try:
            make_recipe(merge({"data": {"source": "?"}}, recipe))
        except UserError as error:
            raise UserError(f"{options.recipe}: {error}") from error
    if options.init_from is not None:
        info, _ = read_package(options.init_from)
        initial_recipe = info.recipe
        is_model = (options.init_from / WEIGHTS).is_file()
        folder = options.init_from if is_model else options.init_from / "model"
        initial_sha256 = file_sha256(folder / WEIGHTS)
    files = InputFiles(
        recipe=recipe,
        named_recipe=named,
        weights_sha256=file_sha256(options.weights) if options.weights is not None else None,
        initial_recipe=initial_recipe,
        initial_sha256=initial_sha256,
    )
    check_options(options, files)
    return files
