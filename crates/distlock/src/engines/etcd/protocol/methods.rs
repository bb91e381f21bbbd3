//! The methods of etcd's interface that are called.

pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(crate) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(crate) const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub(crate) const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
pub(crate) const LEASE_TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
pub(crate) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
