module github.com/sluicelimits/sluice/bench

go 1.26.0

replace github.com/sluicelimits/sluice => ../

require (
	github.com/sethvargo/go-limiter v0.7.1
	github.com/sluicelimits/sluice v0.0.0-00010101000000-000000000000
	golang.org/x/time v0.16.0
)

require go.yaml.in/yaml/v3 v3.0.6 // indirect
