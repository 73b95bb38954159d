"""Unit tests of the policy, the plan, the probe and the filter."""
