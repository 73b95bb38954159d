"""Small trusted programs between the host and the code: zygote, init, keeper, custodian. Standard library only."""
