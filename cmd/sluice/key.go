package main

import "github.com/spf13/cobra"

func newKeyCommand() *cobra.Command { return &cobra.Command{Use: "key"} }
