"""Work that several processes and machines divide: by locks in a shared folder, or through Dask."""
