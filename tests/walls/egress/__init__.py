"""Tests of the egress proxy."""
