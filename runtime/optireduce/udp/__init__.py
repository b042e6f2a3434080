"""Unreliable Bounded Transport: data plane of OptiReduce over plain UDP."""
