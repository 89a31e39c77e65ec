"""A plugin for pytest: joblib's own tests of its backends, with the backend `mwpy`.

The tests are those of the installed joblib (`joblib.test.test_parallel`). Most of them are parametrised over the names
of backends: this plugin replaces these names. The other tests use the default backend, which is `mwpy` here, too.

A new version of joblib brings new tests, and they run. What cannot run is in `LEFT_OUT`.
"""

from __future__ import annotations

import pytest
from joblib.parallel import BACKENDS

import mwpy.joblib

PARAMETERS = ("backend", "parent_backend", "child_backend", "outer_backend", "inner_backend")
"""The parameters of joblib's tests that name a backend."""

OTHERS = "it names other backends"
PRIVATE = "it looks at attributes that the pools and batches of joblib's own backends have"
TIMED = "it fails on a busy machine, because it asserts that something takes few seconds"
SERIAL = "it expects threads for nested calls, and those of mwpy are serial"
ALL_SLAVES = "it expects that a call without n_jobs is serial, and mwpy then uses all slaves"
UNKNOWN = "it names the backend in a new process, where nobody has registered it"
FILES = "it expects arrays in files of joblib's own backends, and mwpy has memory that processes share"
CHILDREN = "only processes that multiprocessing has started can use the arguments of its tasks"

LEFT_OUT = {
    "test_abort_backend": TIMED,
    "test_auto_memmap_on_arrays_from_generator": FILES,
    "test_backend_batch_statistics_reset": PRIVATE,
    "test_backend_hinting_and_constraints": OTHERS,
    "test_batching_auto_threading": OTHERS,
    "test_default_mp_context": OTHERS,
    "test_dispatch_multiprocessing": CHILDREN,
    "test_effective_n_jobs_None": OTHERS,
    "test_error_capture": PRIVATE,
    "test_initializer_context": CHILDREN,
    "test_initializer_not_reused": OTHERS,
    "test_initializer_parallel": CHILDREN,
    "test_initializer_reused": OTHERS,
    "test_loky_reuse_workers": OTHERS,
    "test_memmapping_leaks": FILES,
    "test_multiple_generator_call": TIMED,
    "test_multiple_generator_call_managed": TIMED,
    "test_multiple_generator_call_separated_gc": TIMED,
    "test_mutate_input_with_threads": OTHERS,
    "test_nested_backend_context_manager": SERIAL,
    "test_nested_backend_in_sequential": ALL_SLAVES,
    "test_nested_exception_dispatch": "joblib expects that it fails",
    "test_nested_loop_with_exception_with_loky": OTHERS,
    "test_nested_parallel_warnings": OTHERS,
    "test_nested_parallelism_limit": SERIAL,
    "test_parallel_byteorder_corruption": OTHERS,
    "test_parallel_pickling": OTHERS,
    "test_parallel_return_order_with_return_as_generator_parameter": OTHERS,
    "test_parallel_thread_limit": "it needs a compiled module of joblib's sources",
    "test_parallel_timeout_fail_with_generator": TIMED,
    "test_parallel_timeout_success": TIMED,
    "test_parallel_unordered_generator_returns_fastest_first": TIMED,
    "test_parallel_with_interactively_defined_bound_method_loky": OTHERS,
    "test_parallel_with_interactively_defined_functions": UNKNOWN,
    "test_parallel_with_interactively_defined_functions_loky": OTHERS,
    "test_parallel_with_unpicklable_functions_in_args": UNKNOWN,
    "test_threadpool_limitation_in_child_context": OTHERS,
    "test_threadpool_limitation_in_child_loky": OTHERS,
    "test_threadpool_limitation_in_child_override": OTHERS,
}
"""The tests that do not run, and why."""


def pytest_configure() -> None:
    """joblib's tests read the table of backends when they are imported."""
    mwpy.joblib.register(make_default=True)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Replace the backends by `mwpy`. Where two are nested, the other one may be threads."""
    marks = metafunc.definition.own_markers
    for place, mark in enumerate(marks):
        if mark.name == "parametrize" and mark.args[0] in PARAMETERS:
            values = ["mwpy"] if mark.args[0] == "backend" else ["mwpy", "threading"]
            if None in mark.args[1]:  # these tests accept objects as well as names
                values.append(BACKENDS["mwpy"]())
            marks[place] = pytest.mark.parametrize(mark.args[0], values, **mark.kwargs).mark


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run. A test that joblib no longer has must leave the table."""
    names = {item.function.__name__ for item in items if isinstance(item, pytest.Function)}
    unknown = sorted({*LEFT_OUT} - names)
    if unknown:
        raise pytest.UsageError(f"joblib has no such tests any more: {unknown}; remove them from LEFT_OUT")
    left_out = [item for item in items if isinstance(item, pytest.Function) and item.function.__name__ in LEFT_OUT]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
