module github.com/sluicelimits/sluice/bench

go 1.26.0

replace github.com/sluicelimits/sluice => ../
