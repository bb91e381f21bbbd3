module distlock/peers

go 1.19

require go.etcd.io/etcd/client/v3 v3.5.9
