"""What etcd is asked, in its own messages. Pure: bytes and numbers in, a request out."""

from __future__ import annotations

from aetcd.rpc import rpc_pb2 as pb


def one(key: bytes) -> pb.RangeRequest:
    return pb.RangeRequest(key=key)


def page(start: bytes, end: bytes, limit: int, revision: int) -> pb.RangeRequest:
    """Some entries in the order of keys, of one state; revision 0: the present one."""
    return pb.RangeRequest(key=start, range_end=end, limit=limit, revision=revision)


def head_of(key: bytes) -> pb.RangeRequest:
    """Nothing but how far the store is, through the quorum."""
    return pb.RangeRequest(key=key, count_only=True)


def put(key: bytes, value: bytes, lease: int) -> pb.PutRequest:
    return pb.PutRequest(key=key, value=value, lease=lease)


def delete(key: bytes) -> pb.DeleteRangeRequest:
    return pb.DeleteRangeRequest(key=key)


def put_if(key: bytes, revision: int, then: pb.PutRequest) -> pb.TxnRequest:
    return _if(key, revision, pb.RequestOp(request_put=then))


def delete_if(key: bytes, revision: int) -> pb.TxnRequest:
    return _if(key, revision, pb.RequestOp(request_delete_range=delete(key)))


def grant(ttl_ms: int) -> pb.LeaseGrantRequest:
    """etcd counts in whole seconds."""
    return pb.LeaseGrantRequest(TTL=-(-ttl_ms // 1_000))


def renew(lease: int) -> pb.LeaseKeepAliveRequest:
    return pb.LeaseKeepAliveRequest(ID=lease)


def revoke(lease: int) -> pb.LeaseRevokeRequest:
    return pb.LeaseRevokeRequest(ID=lease)


def watch_from(start: bytes, end: bytes, revision: int) -> pb.WatchRequest:
    """Every change after `revision`, and that of `revision` itself: only then does etcd say so
    when the next one was compacted. Long replies come in fragments."""
    return pb.WatchRequest(
        create_request=pb.WatchCreateRequest(
            key=start,
            range_end=end,
            start_revision=max(1, revision),
            progress_notify=True,
            fragment=True,
        )
    )


def are_you_there() -> pb.WatchRequest:
    return pb.WatchRequest(progress_request=pb.WatchProgressRequest())


def _if(key: bytes, revision: int, then: pb.RequestOp) -> pb.TxnRequest:
    """Where there is no entry, its revision counts as 0."""
    unchanged = pb.Compare(
        result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=revision
    )
    return pb.TxnRequest(compare=[unchanged], success=[then])
