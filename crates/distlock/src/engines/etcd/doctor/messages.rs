//! The messages that only an examination needs: field numbers are etcd's, the selection is ours.

use prost::Message;

use crate::engines::etcd::protocol::messages::Header;

pub(super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";
pub(super) const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
pub(super) const MEMBER_LIST: &str = "/etcdserverpb.Cluster/MemberList";

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(super) version: String,
    #[prost(int64, tag = "3")]
    pub(super) db_size: i64,
    /// 0: there is none.
    #[prost(uint64, tag = "4")]
    pub(super) leader: u64,
    #[prost(uint64, tag = "5")]
    pub(super) raft_index: u64,
    #[prost(uint64, tag = "6")]
    pub(super) raft_term: u64,
    #[prost(uint64, tag = "7")]
    pub(super) raft_applied_index: u64,
    #[prost(string, repeated, tag = "8")]
    pub(super) errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub(super) is_learner: bool,
    /// Told since 3.6.
    #[prost(int64, tag = "12")]
    pub(super) db_size_quota: i64,
}

/// Asks for the alarms that are raised.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct AlarmRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AlarmResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) alarms: Vec<AlarmMember>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct AlarmMember {
    #[prost(int32, tag = "2")]
    pub(super) alarm: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct MemberListRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Member {
    /// Empty until it has started for the first time.
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, repeated, tag = "4")]
    pub(super) client_urls: Vec<String>,
    #[prost(bool, tag = "5")]
    pub(super) is_learner: bool,
}
