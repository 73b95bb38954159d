"""What outlives a host that has a custodian, and how the next host continues it.

A host has one `Keeper`. That of a host without a custodian keeps nothing; `keeping` is the other one. `tape` and `recording`
are about kernels, `state_log` and `states` about the states of sessions; `recovery` and `takeover` read these again.
"""
