"""Steps captured as graphs of the platform: three runners of one mechanism, which differ in where a step is cut.

`full` never, `piecewise` at every operator that a program marks, `breakable` where the host must decide.
"""
