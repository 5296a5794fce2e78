import json

import torch

from scs_supcon.runs.environment import describe_environment


def test_what_the_bits_depend_on_is_named():
    environment = describe_environment()
    assert environment["libraries"]["torch"] == torch.__version__.partition("+")[0]
    assert environment["threads"] == torch.get_num_threads()
    assert environment["cpu"]
    assert json.loads(json.dumps(environment)) == environment
