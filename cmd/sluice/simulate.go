package main

import "github.com/spf13/cobra"

func newSimulateCommand() *cobra.Command { return &cobra.Command{Use: "simulate"} }
