"""Kernels and sessions that outlive a host with a custodian, and their takeover by the next host.

A host has one `Keeper`. `keeper` has a null object for hosts without a custodian, `keeping` the implementation. `tape` and
`recording` concern kernels, `state_log` the states of sessions. `recovery` and `session_handover` continue them.
"""
