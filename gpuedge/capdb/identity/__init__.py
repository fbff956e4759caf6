"""Who a device is: makers, families, models, layers and driver versions, out of what it reports."""
