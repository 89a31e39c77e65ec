"""mwpy and other libraries with the same workloads, side by side: see `__main__.py` for how to run them.

`libraries/` has one module for each library, all of the same shape (`peer.py`). `workloads.py` measures a library
through this shape. `measure.py` does one measurement in a fresh process. `runner.py` runs rounds of these processes.
`report.py` compares what they print.
"""
