"""The attacks by what they are about. To import this is to fill `suite.ATTACKS`."""

from bench.escape.attacks import files, network, processes, system

PARTS = {
    module.__name__.rpartition(".")[2]: module.__doc__.partition(".")[0]
    for module in (files, processes, network, system)
    if module.__doc__
}
