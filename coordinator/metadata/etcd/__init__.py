"""The metadata store on etcd. It needs the extra ``etcd``; imported only where metadata lies at an ``etcd://`` URL."""
