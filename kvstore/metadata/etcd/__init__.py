"""Metadata in etcd, for the nodes of several hosts: the stubs of aetcd on channels of our own.

Everything lies below `moonpool/CLUSTER/`, so that one etcd can serve several pools and others.
"""

from __future__ import annotations

from kvstore.metadata.etcd.store import EtcdMetadata

__all__ = ["EtcdMetadata"]
